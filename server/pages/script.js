/**
 * The sign-in pages. Each step is a form that calls one of `/auth/*` and shows the next step from the reply. Texts
 * are inserted as text only, never as HTML.
 */
const { page, own, welcome, logo, id, secret, project, hasConsole } = document.body.dataset
const asked = new URLSearchParams(location.search)
const content = document.getElementById('content')
const problem = document.getElementById('problem')
const heading = document.querySelector('h1')
/** A sign-in ends after ten minutes, or five wrong codes. */
const START_AGAIN = 'Start again'
/** Storage key for the app's request while the person is at their provider. */
const ASKED = 'botica-oauth'
/** The last one is that of the project where a whole address is pasted. */
const PROJECT_ID = /[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/gi
const product = document.title.split(' – ').at(-1)

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
    return element('label', {}, input, element('span', {}, label))
  })
  return element('fieldset', {}, element('legend', {}, legend), ...rows)
}

/** Shows one step: a form with its submit and refusal handlers. Its title is announced first. */
function step(title, children, label, submit, refusal) {
  const button = element('button', { type: 'submit' }, label)
  const no = refusal ? [element('button', { type: 'button', class: 'no' }, refusal.label)] : []
  const form = element('form', {}, ...children, button, ...no)
  const attempt = async (what) => {
    for (const item of [button, ...no]) item.disabled = true
    problem.textContent = ''
    try {
      await what()
    } catch (error) {
      problem.textContent = error.message
      // Selects a field to be typed again; the alert is announced in any case.
      form.querySelector('[type=password], [inputmode=numeric]')?.select()
    } finally {
      for (const item of [button, ...no]) item.disabled = false
    }
  }
  form.addEventListener('submit', (event) => {
    event.preventDefault()
    void attempt(() => submit(new FormData(form)))
  })
  no[0]?.addEventListener('click', () => void attempt(refusal.act))
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

function said(title, text, ...more) {
  show(title, element('p', { role: 'status' }, text), ...more)
}

/** A link to the first step of the app's request. */
function restartLink(label) {
  const query = new URLSearchParams(asked)
  query.delete('login')
  const link = element('a', { href: `${location.pathname}?${query}` }, label)
  content.append(element('p', {}, link))
}

/** Returns the parameters of the app's request, named as in `/auth/login`. */
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
  return Object.fromEntries(fields)
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
      // The provider redirects to /signin, which continues here.
      if (page === 'oauth') sessionStorage.setItem(ASKED, location.search)
      location.assign(method.authorizeUrl)
      return
    }
    await proceed(await call('login', { ...request(), email, password: form.get('password') }))
  })
  content.append(element('p', {}, element('a', { href: resetAddress() }, 'Forgot your password?')))
  if (own && !asked.has('project_id')) content.append(projectLink())
}

/** Names the project of the app or of the address, whose own accounts are found in it only. */
function resetAddress() {
  const named = project ?? asked.get('project_id')
  return named ? `/resetpassword?${new URLSearchParams({ project_id: named })}` : '/resetpassword'
}

/** Adds the project, without which an account of one project is not found. */
function projectLink() {
  const link = element('button', { type: 'button', class: 'no' }, 'My account is for one project only')
  link.addEventListener('click', () => {
    const input = field('project', 'Project id', { autocomplete: 'off' })
    const hint = element('p', {}, 'Your administrator has it: it is the last part of the address in your invitation.')
    step('Choose a project', [...input, hint], 'Continue', async (form) => {
      const id = form.get('project').match(PROJECT_ID)?.at(-1)
      if (id === undefined) throw new Error('This is not the id of a project, nor an address that ends with one')
      location.assign(`/console/p/${id.toLowerCase()}`)
    })
  })
  return link
}

async function proceed(answer) {
  const { login, code, memberships } = answer
  if (answer.mfaEnrollRequired) return askToken(login, 'mfa/login-enroll', answer.enrollQrCode)
  if (answer.mfaMethods?.includes('email')) return askMailedCode(login, answer.email)
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
  const input = codeField('Code of your authenticator app')
  step('Second step', [...picture, ...input], 'Continue', async (form) => {
    await proceed(await call(path, { login, token: form.get('token') }))
  })
  restartLink(START_AGAIN)
}

/** Mails a code first; the person may ask for another. */
async function askMailedCode(login, email) {
  const send = async () => {
    await call('mfa/send-email', { login })
    status.textContent = `A code is on its way to ${email}. It is valid for ten minutes.`
  }
  const status = element('p', { role: 'status' })
  await send()
  const input = codeField('Code of the mail')
  const verify = async (form) => {
    await proceed(await call('mfa/verify', { login, token: form.get('token') }))
  }
  step('Second step', [status, ...input], 'Continue', verify, { label: 'Send another code', act: send })
  restartLink(START_AGAIN)
}

function codeField(label) {
  return field('token', label, {
    inputmode: 'numeric',
    autocomplete: 'one-time-code',
    pattern: '[0-9]{6}',
    maxlength: '6',
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
  restartLink(START_AGAIN)
}

/** Shows the app and its requested scope. The person may withhold data access; other words are always granted. */
async function askConsent(login, code) {
  const consent = await call(`login/${encodeURIComponent(login)}/consent`)
  if (consent.needsPatient) return askPatient(login)
  const { application, owner, person, email, project, scopes } = consent
  const words = consent.scope.split(' ').filter((word) => word !== '')
  const [data, others] = [scopes.filter((item) => item.isChoice), scopes.filter((item) => !item.isChoice)]
  const strong = (text) => element('strong', {}, text)
  const lines = [
    element('p', {}, strong(application), ' by ', strong(owner), ' asks for access.'),
    element(
      'dl',
      {},
      ...named('You', email ? `${person} (${email})` : person),
      ...named('Project', project),
      ...named('Sends you to', displayHost(consent.redirectUri)),
    ),
    element('p', {}, 'It will be able to:'),
    element('ul', {}, ...others.map(({ text }) => element('li', {}, text))),
  ]
  const items = data.map(({ scope, text }) => ({ value: scope, label: text }))
  if (items.length > 0) lines.push(choices('Access to data', 'checkbox', 'scope', items))
  const allow = async (form) => {
    const chosen = form.getAll('scope')
    if (data.length > 0 && chosen.length === 0) throw new Error('Please choose something, or deny access')
    const kept = words.filter((word) => !data.some(({ scope }) => scope === word))
    const scope = [...kept, ...chosen].join(' ')
    const answer = scope === '' ? { code } : await call('scope', { login, scope })
    leave(consent.redirectUri, { code: answer.code })
  }
  const deny = async () => {
    await call('deny', { login })
    leave(consent.redirectUri, { error: 'access_denied', error_description: 'The person denied access' })
  }
  step('Allow access', lines, 'Allow', allow, { label: 'Deny', act: deny })
  restartLink('Use another account')
}

/** Shows the patients visible to the person, by name; `asked` holds the search text. */
async function askPatient(login, name = '', cursor = '') {
  const query = new URLSearchParams({ name, ...(cursor ? { cursor } : {}) })
  const { patients, next } = await call(`login/${encodeURIComponent(login)}/patients?${query}`)
  const items = patients.map(({ id, name, birthDate, gender }) => ({
    value: id,
    label: [name, birthDate, gender].filter(Boolean).join(', '),
  }))
  const search = element('input', { id: 'name', type: 'search', value: name, 'aria-describedby': 'problem' })
  const button = (label, act) => {
    const made = element('button', { type: 'button', class: 'no' }, label)
    made.addEventListener('click', () => {
      act().catch((error) => {
        problem.textContent = error.message
      })
    })
    return made
  }
  const find = button('Search', () => askPatient(login, search.value))
  // Enter in the field searches; it never selects the first patient.
  search.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter') return
    event.preventDefault()
    find.click()
  })
  const list = items.length > 0 ? choices('Patients', 'radio', 'patient', items) : element('p', { role: 'status' }, 'No patient is found.')
  const more = next ? [button('Show more', () => askPatient(login, name, next))] : []
  const parts = [element('label', { for: 'name' }, 'Name'), search, find, list, ...more]
  step('Choose a patient', parts, 'Continue', async (form) => {
    const patient = form.get('patient')
    if (!patient) throw new Error('Please search for a patient, and choose one')
    await proceed(await call('patient', { login, patient }))
  })
  restartLink(START_AGAIN)
}

function named(name, text) {
  return [element('dt', {}, name), element('dd', {}, text)]
}

function displayHost(address) {
  const url = new URL(address)
  return url.host || url.protocol
}

/** Leaves for the address that the server has validated and stored with the sign-in. */
function leave(address, parameters) {
  const url = new URL(address)
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value)
  if (asked.has('state')) url.searchParams.set('state', asked.get('state'))
  url.searchParams.set('iss', document.body.dataset.issuer)
  location.assign(url)
}

function askReset() {
  const input = field('email', 'E-mail', { type: 'email', autocomplete: 'username' })
  step('Reset your password', input, 'Send a link', async (form) => {
    const email = form.get('email')
    const named = asked.get('project_id')
    // Accounts of several projects sign in at the address of one too, and the service does not reveal which kind exists.
    if (named) await call('resetpassword', { email, projectId: named.toLowerCase() })
    await call('resetpassword', { email })
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
    const signIn = element('a', { href: signInAddress() }, 'Sign in')
    said('Password saved', 'You can sign in now.', element('p', {}, signIn))
  })
}

/** An account of one project, which the link names, is found there only. */
function signInAddress() {
  const named = asked.get('project_id')
  if (!named) return hasConsole ? '/console' : '/signin'
  return hasConsole
    ? `/console/p/${encodeURIComponent(named)}`
    : `/signin?${new URLSearchParams({ project_id: named })}`
}

function askVerify() {
  step('Confirm your e-mail address', [], 'Confirm', async () => {
    await call('verifyemail', { id, secret })
    said('Thank you', 'Your address is confirmed.')
  })
}

async function start() {
  const login = asked.get('login')
  if (!login) return askPassword()
  const before = sessionStorage.getItem(ASKED)
  sessionStorage.removeItem(ASKED)
  if (page === 'signin' && before !== null) {
    const query = new URLSearchParams(before)
    query.set('login', login)
    location.replace(`/oauth?${query}`)
    return
  }
  try {
    await proceed(await call(`login/${encodeURIComponent(login)}`))
  } catch (error) {
    askPassword()
    problem.textContent = error.message
  }
}

const ARRIVALS = {
  oauth: (login, code) => (own ? leave(asked.get('redirect_uri'), { code }) : askConsent(login, code)),
  signin: () => said('Signed in', 'You are signed in.'),
}

const PAGES = {
  oauth: start,
  signin: start,
  resetpassword: askReset,
  setpassword: askNewPassword,
  verifyemail: askVerify,
}
void PAGES[page]()
