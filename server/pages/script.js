/**
 * The pages a person signs in on. Each step is a form that calls one of `/auth/*` and shows the next
 * step by its answer. Texts reach the page as text only, never as HTML.
 */
const { page, welcome, logo, id, secret } = document.body.dataset
const asked = new URLSearchParams(location.search)
const content = document.getElementById('content')
const problem = document.getElementById('problem')
const heading = document.querySelector('h1')
const product = document.title.split(' – ').at(-1)

/** Throws with what the server says is wrong. */
async function call(path, body) {
  const request =
    body === undefined
      ? {}
      : {
          method: 'POST',
          headers: { 'Content-Type': 'application/json' },
          body: JSON.stringify(body),
        }
  const response = await fetch(`/auth/${path}`, request)
  const answer = await response.json().catch(() => ({}))
  if (response.ok) return answer
  const texts = (answer.issue ?? []).map((issue) => issue.details?.text)
  const wait = response.headers.get('Retry-After')
  const pause = response.status === 429 && wait ? ` Please wait ${wait} seconds.` : ''
  throw new Error((texts.join('. ') || 'Something went wrong') + pause)
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
  made.append(...children)
  return made
}

function field(name, label, attributes) {
  const described = { 'aria-describedby': 'problem' }
  const input = element('input', { id: name, name, required: '', ...described, ...attributes })
  return [element('label', { for: name }, label), input]
}

function choices(legend, type, name, items) {
  const rows = items.map(({ value, label }, place) => {
    const isChosen = type === 'checkbox' || place === 0
    const input = element('input', { type, name, value, ...(isChosen ? { checked: '' } : {}) })
    return element('label', {}, input, ` ${label}`)
  })
  return element('fieldset', {}, element('legend', {}, legend), ...rows)
}

/** One step: a form, what to do with its values. The title is read out first. */
function step(title, children, label, submit) {
  const button = element('button', { type: 'submit' }, label)
  const form = element('form', {}, ...children, button)
  form.addEventListener('submit', async (event) => {
    event.preventDefault()
    button.disabled = true
    problem.textContent = ''
    try {
      await submit(new FormData(form))
    } catch (error) {
      problem.textContent = error.message
      // What has to be typed again; where there is nothing of the kind the alert is read out all the same.
      form.querySelector('[type=password], [inputmode=numeric]')?.select()
    } finally {
      button.disabled = false
    }
  })
  show(title, form)
  form.querySelector('input')?.focus()
}

function show(title, ...children) {
  heading.textContent = title
  document.title = `${title} – ${product}`
  problem.textContent = ''
  content.replaceChildren(...children)
  heading.focus()
}

function said(title, text) {
  show(title, element('p', { role: 'status' }, text))
}

/** What the request of the app asks for, as `/auth/login` names it. */
function request() {
  const names = {
    clientId: 'client_id',
    projectId: 'project_id',
    scope: 'scope',
    nonce: 'nonce',
    launch: 'launch',
    codeChallenge: 'code_challenge',
    codeChallengeMethod: 'code_challenge_method',
    redirectUri: 'redirect_uri',
  }
  const fields = Object.entries(names).map(([name, parameter]) => [name, asked.get(parameter) ?? ''])
  return { ...Object.fromEntries(fields), ...own }
}

/** Of a page that keeps the token itself (RFC 7636 §4.1 and §4.2). */
async function challenge() {
  const base64 = (bytes) =>
    btoa(String.fromCharCode(...new Uint8Array(bytes)))
      .replaceAll('+', '-')
      .replaceAll('/', '_')
      .replaceAll('=', '')
  const verifier = base64(crypto.getRandomValues(new Uint8Array(32)))
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier))
  return { verifier, own: { codeChallenge: base64(digest), codeChallengeMethod: 'S256' } }
}

function askPassword() {
  const greeting = []
  if (logo) greeting.push(element('img', { src: logo, alt: '' }))
  if (welcome) greeting.push(element('p', {}, welcome))
  const fields = [
    ...greeting,
    ...field('email', 'E-mail', { type: 'email', autocomplete: 'username' }),
    ...field('password', 'Password', { type: 'password', autocomplete: 'current-password' }),
  ]
  step('Sign in', fields, 'Sign in', async (form) => {
    const email = form.get('email')
    const method = await call('method', { ...request(), email })
    if (method.authorizeUrl) {
      location.assign(method.authorizeUrl)
      return
    }
    await proceed(await call('login', { ...request(), email, password: form.get('password') }))
  })
  content.append(element('p', {}, element('a', { href: '/resetpassword' }, 'Forgot your password?')))
}

/** The next step, by what the answer of the last one asks for. */
async function proceed(answer) {
  const { login, code, memberships } = answer
  if (answer.mfaEnrollRequired) return askToken(login, 'mfa/login-enroll', answer.enrollQrCode)
  if (answer.mfaRequired) return askToken(login, 'mfa/verify')
  if (code) return ARRIVALS[page](login, code)
  if (memberships) return askMembership(login, memberships)
  throw new Error('There is nothing to sign in to')
}

function askToken(login, path, qrCode) {
  const picture = qrCode
    ? [
        element('p', {}, 'Scan this picture with your authenticator app, then type its code.'),
        element('img', { src: qrCode, alt: 'Picture for your authenticator app', width: '220' }),
      ]
    : []
  const input = field('token', 'Code of your authenticator app', {
    inputmode: 'numeric',
    autocomplete: 'one-time-code',
    pattern: '[0-9]{6}',
    maxlength: '6',
  })
  step('Second step', [...picture, ...input], 'Continue', async (form) => {
    await proceed(await call(path, { login, token: form.get('token') }))
  })
}

function askMembership(login, memberships) {
  const items = memberships.map((membership) => ({
    value: membership.id,
    label: `${membership.profile.display ?? membership.profile.reference}, ${membership.project.display ?? membership.project.reference}`,
  }))
  const list = choices('Continue as', 'radio', 'profile', items)
  step('Choose a profile', [list], 'Continue', async (form) => {
    await proceed(await call('profile', { login, profile: form.get('profile') }))
  })
}

/** Words that give access to data are the person's to give; the others go along. */
function askScope(login, code) {
  const words = (asked.get('scope') ?? '').split(/\s+/).filter((word) => word !== '')
  const data = words.filter((word) => /^(patient|user|system)\//.test(word))
  if (data.length === 0) return finish(code)
  const list = choices('The app asks for', 'checkbox', 'scope', data.map((value) => ({ value, label: value })))
  step('Allow access', [list], 'Allow', async (form) => {
    const chosen = form.getAll('scope')
    if (chosen.length === 0) throw new Error('Please choose something, or close this page')
    if (chosen.length === data.length) return finish(code)
    const kept = words.filter((word) => !data.includes(word))
    const answer = await call('scope', { login, scope: [...kept, ...chosen].join(' ') })
    finish(answer.code)
  })
}

/** The server has looked at the address before it sent this page. */
function finish(code) {
  const url = new URL(asked.get('redirect_uri'))
  url.searchParams.set('code', code)
  if (asked.has('state')) url.searchParams.set('state', asked.get('state'))
  url.searchParams.set('iss', document.body.dataset.issuer)
  location.assign(url)
}

function askReset() {
  const input = field('email', 'E-mail', { type: 'email', autocomplete: 'username' })
  step('Reset your password', input, 'Send a link', async (form) => {
    await call('resetpassword', { email: form.get('email'), projectId: asked.get('project_id') ?? '' })
    said('Look into your mail', 'If we know this address, a link is on its way to it.')
  })
}

function askNewPassword() {
  const fresh = { type: 'password', autocomplete: 'new-password', minlength: '8' }
  const fields = [
    ...field('password', 'New password', fresh),
    ...field('again', 'The same again', fresh),
  ]
  step('Choose a password', fields, 'Save', async (form) => {
    const password = form.get('password')
    if (password !== form.get('again')) throw new Error('The two passwords differ')
    await call('setpassword', { id, secret, password })
    said('Password saved', 'You can sign in now.')
  })
}

function askVerify() {
  step('Confirm your e-mail address', [], 'Confirm', async () => {
    await call('verifyemail', { id, secret })
    said('Thank you', 'Your address is confirmed.')
  })
}

async function start() {
  const login = asked.get('login')
  if (page !== 'oauth' || !login) return askPassword()
  const answer = await call(`login/${encodeURIComponent(login)}`).catch(() => undefined)
  if (answer === undefined) return askPassword()
  step('You are signed in', [], 'Continue', () => proceed(answer))
}

async function openGraphiql(code) {
  const graphiql = await import('/graphiql/start.js')
  await graphiql.openGraphiql(code, verifier)
}

/** What becomes of the code of a person who has signed in. */
const ARRIVALS = {
  oauth: askScope,
  signin: () => said('Signed in', 'You are signed in.'),
  graphiql: (_login, code) => openGraphiql(code),
}
const { verifier, own } = page === 'graphiql' ? await challenge() : {}

const PAGES = {
  oauth: start,
  signin: start,
  graphiql: start,
  resetpassword: askReset,
  setpassword: askNewPassword,
  verifyemail: askVerify,
}
void PAGES[page]()
