/** People and clients get in, get rights and lose them, by clicks alone. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import {
  barriers,
  click,
  holdAnswers,
  loseAnswers,
  openConsole,
  reads,
  signInOn,
} from '../../fixtures/http/console.ts'
import { anEmail, invite, mailsTo } from '../../fixtures/invites.ts'
import { aPerson } from '../../fixtures/people.ts'
import { aPatient } from '../../fixtures/resources.ts'

interface Found {
  readonly entry: readonly { readonly resource: { readonly id: string; readonly secret: string } }[]
}

exitWithoutChromium(t)
const botica = await openBotica(t)
const { services, baseUrl, project, admin } = botica
const { email } = await aPerson(services, project, { details: { admin: true } })
const policy = await admin.create({
  resourceType: 'AccessPolicy',
  name: 'Ward',
  resource: [
    { resourceType: 'Patient', criteria: 'Patient?family=%name', hiddenFields: ['telecom'] },
  ],
})
const page = await openConsole(t, { baseUrl, email, path: '/members/invite' })

const first = async (search: string) =>
  (await admin.get<Found>(search)).body.entry[0]?.resource ?? { id: '', secret: '' }

t.test('shows the errors of an invitation at their fields', async (t) => {
  await page.press('form button[type=submit]')
  for (const name of ['firstName', 'lastName', 'email']) {
    await page.shows(`document.querySelector('input[name=${name}][aria-invalid=true]')`)
  }
  await reads(page, 'First name is required')
  t.same(await barriers(page), [])
})

t.test('a person is invited with a policy and its parameter', async (t) => {
  await page.write('input[name=firstName]', 'Grace')
  await page.write('input[name=lastName]', 'Hopper')
  await page.write('input[name=email]', 'grace@example.org')
  await click(page, 'Add a policy with parameters')
  await page.write('fieldset input', 'name')
  await page.write('fieldset input[placeholder]', 'Chalmers')
  await page.press('form button[type=submit]')
  await page.shows(`location.pathname.startsWith('/console/members/member/')`)
  await reads(page, 'What would this member see?')
  await reads(page, 'In force: Ward')
  await reads(page, 'Waiting in the outbox')
  const id = (await page.value<string>('location.pathname')).split('/').at(-1)
  const { body } = await admin.get(`ProjectMembership/${id}`)
  t.match(body, {
    profile: { display: 'Grace Hopper' },
    access: [
      {
        policy: { reference: `AccessPolicy/${policy.id}` },
        parameter: [{ name: 'name', valueString: 'Chalmers' }],
      },
    ],
  })
  t.same(await barriers(page), [])
})

t.test(
  'an invitation is sent again, and its link is copied for an account of one project',
  async (t) => {
    await click(page, 'Send the invitation again')
    await until(async () => (await mailsTo(services, 'grace@example.org')).length === 2, 60_000)
    t.equal((await mailsTo(services, 'grace@example.org')).length, 2)
    await reads(page, 'This account can be used in other projects')
    const explained = await page.value('location.href')
    const { body } = await invite(admin, project.id, { email: anEmail(), scope: 'project' })
    await page.goto(`${baseUrl}console/members`)
    await reads(page, 'Invited')
    await page.goto(`${baseUrl}console/members/member/${body.id}`)
    await reads(page, `/console/p/${project.id}`)
    await click(page, 'Make a link to copy')
    await reads(page, `/setpassword/`)
    t.same(await barriers(page), [])
    await page.goto(String(explained))
  },
)

t.test('explains the visible resources of the member', async (t) => {
  const { id } = await admin.create({ ...aPatient(), name: [{ family: 'Chalmers' }] })
  await admin.create({ ...aPatient(), name: [{ family: 'Foster' }] })
  await page.goto(await page.value('location.href'))
  await reads(page, '1 of 2 Patient records: those with family Chalmers, by entry 1 of policy Ward')
  await reads(page, 'Types that are not listed are hidden from this member.')
  await page.press('input[data-add-type]')
  await page.write('input[data-add-type]', 'Encounter')
  await click(page, 'Encounter')
  await reads(page, 'No Encounter records: no entry lets the member search the type.')
  await page.write('input[name=resource]', `Patient/${id}`)
  await click(page, 'Explain')
  await page.shows(`document.querySelector('[aria-label="What the member may do"]')`)
  await reads(page, 'telecom')
  await reads(page, 'entry 1 of policy Ward is the first entry that fits')
  await page.write('input[name=resource]', 'Patient?family=Chalmers')
  await click(page, 'Explain')
  await reads(page, '1 records.')
  await page.write('input[name=resource]', 'Patient/nobody')
  await click(page, 'Explain')
  await reads(page, 'Not found')
  t.same(await barriers(page), [])
})

t.test('a member is made an administrator, deactivated and removed', async (t) => {
  const id = (await page.value<string>('location.pathname')).split('/').at(-1)
  await page.press('input[name=admin]')
  await click(page, 'Save')
  await reads(page, 'Saved')
  t.match((await admin.get(`ProjectMembership/${id}`)).body, { admin: true })
  await click(page, 'Deactivate')
  await reads(page, 'is signed out at once')
  await page.press('[data-confirm]')
  await reads(page, 'The member can no longer sign in')
  t.match((await admin.get(`ProjectMembership/${id}`)).body, { active: false, admin: true })
  await click(page, 'Remove from the project')
  await page.shows(`document.querySelector('[role=dialog]')`)
  await page.press('[role=dialog] [data-confirm]')
  await page.shows(`location.pathname === '/console/members'`)
  t.equal((await admin.get(`ProjectMembership/${id}`)).status, 410)
})

t.test('the secret of a client is shown once, and rotated', async (t) => {
  await page.goto(`${baseUrl}console/members/new-client`)
  await page.press('form button[type=submit]')
  await reads(page, 'Client name is required')
  await page.write('input[name=name]', 'Laboratory')
  await page.press('form button[type=submit]')
  await reads(page, 'Copy this secret now')
  const { id, secret } = await first('ClientApplication?name=Laboratory')
  await reads(page, secret)
  const member = await first(`ProjectMembership?profile=ClientApplication/${id}`)
  await page.goto(`${baseUrl}console/members/member/${member.id}`)
  await click(page, 'Rotate the secret')
  await reads(page, 'Copy this secret now')
  const { body } = await admin.get(`ClientApplication/${id}`)
  t.equal(body.retiringSecret, secret)
  await reads(page, String(body.secret))
  t.notOk(await page.value(`document.body.innerText.includes('${secret}')`))
  await click(page, 'End the old secret')
  await reads(page, 'can no longer sign in')
  t.equal((await admin.get(`ClientApplication/${id}`)).body.retiringSecret, secret)
  t.same(await barriers(page), [])
  await page.press('[role=dialog] [data-confirm]')
  await reads(page, 'The current secret keeps working')
  t.equal((await admin.get(`ClientApplication/${id}`)).body.retiringSecret, undefined)
  t.same(await barriers(page), [])
})

t.test('saving rights and clients keeps elements that the forms do not show', async (t) => {
  const { id } = await first('ClientApplication?name=Laboratory')
  const member = await first(`ProjectMembership?profile=ClientApplication/${id}`)
  const [clientPath, memberPath] = [`ClientApplication/${id}`, `ProjectMembership/${member.id}`]
  const [one, two] = ['http://localhost/one', 'http://localhost/two']
  const access = [{ policy: { reference: `AccessPolicy/${policy.id}`, display: 'The ward' } }]
  const addresses = { redirectUris: [one], redirectUri: two }
  await admin.put(clientPath, { ...(await admin.get(clientPath)).body, ...addresses })
  await admin.put(memberPath, { ...(await admin.get(memberPath)).body, access })
  await page.goto(`${baseUrl}console/members/member/${member.id}`)
  await page.press('input[name=admin]')
  await page.write('input[name=description]', 'On the ground floor')
  await page.value(`document.querySelectorAll('form').forEach((form) => form.requestSubmit())`)
  await until(async () => (await admin.get(memberPath)).body.admin === true, 60_000)
  t.match((await admin.get(memberPath)).body, { access })
  await until(async () => (await admin.get(clientPath)).body.description !== undefined, 60_000)
  t.match((await admin.get(clientPath)).body, { redirectUris: [one, two] })
  await admin.put(memberPath, {
    ...(await admin.get(memberPath)).body,
    access: undefined,
    admin: false,
  })
  t.same(await barriers(page), [])
})

t.test('typed rights and clients do not overwrite those saved meanwhile', async (t) => {
  const { id } = await first('ClientApplication?name=Laboratory')
  const member = await first(`ProjectMembership?profile=ClientApplication/${id}`)
  const [clientPath, memberPath] = [`ClientApplication/${id}`, `ProjectMembership/${member.id}`]
  await page.goto(`${baseUrl}console/members/member/${member.id}`)
  await page.press('input[name=admin]')
  await page.write('input[name=name]', 'Big laboratory')
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  await admin.put(memberPath, { ...(await admin.get(memberPath)).body, accessPolicy })
  const description = 'In the basement'
  await admin.put(clientPath, { ...(await admin.get(clientPath)).body, description })
  // Reads the page's data again, as other actions on it do.
  await click(page, 'Rotate the secret')
  const alerts = `[...document.querySelectorAll('form [role=alert]')].filter(
    ({ innerText }) => innerText.includes('was saved while you were typing'))`
  await page.shows(`${alerts}.length === 2`)
  await page.value(`document.querySelectorAll('form').forEach((one) => one.requestSubmit())`)
  await page.shows(`document.querySelectorAll('form button[data-loading]').length === 0`)
  t.match((await admin.get(memberPath)).body, { accessPolicy })
  t.match((await admin.get(clientPath)).body, { description, name: 'Laboratory' })
  t.equal(await page.value(`document.querySelector('input[name=name]').value`), 'Big laboratory')
  t.same(await barriers(page), [])
  const apply = `[...document.querySelectorAll('button')].find(
    ({ textContent }) => textContent.startsWith('Apply my changes'))`
  await page.act(apply, 'found.click()')
  await page.act(apply, 'found.click()')
  await page.shows(`document.querySelector('input[name=description]').value === '${description}'`)
  await page.value(`document.querySelectorAll('form').forEach((one) => one.requestSubmit())`)
  await until(async () => {
    const { body } = await admin.get(memberPath)
    return body.admin === true && (await admin.get(clientPath)).body.name === 'Big laboratory'
  }, 60_000)
  t.match((await admin.get(memberPath)).body, { accessPolicy, admin: true })
  t.match((await admin.get(clientPath)).body, { description })
})

t.test('keeps text typed during a save', async (t) => {
  const { id } = await first('ClientApplication?name=Big')
  const field = `document.querySelector('input[name=name]')`
  const isSaved = `!${field}.form.querySelector('[data-loading]')`
  await page.write('input[name=name]', 'Day laboratory')
  const release = await holdAnswers(page, `fhir/R4/ClientApplication/${id}`)
  await page.value(`${field}.form.requestSubmit()`)
  await page.shows(`!(${isSaved})`)
  await page.keys(' of')
  await release()
  await page.shows(isSaved)
  await page.keys(' the ward')
  t.equal(await page.value(`${field}.value`), 'Day laboratory of the ward')
  t.notOk(await page.value(`document.body.innerText.includes('was saved while you were typing')`))
  await page.value(`${field}.form.requestSubmit()`)
  await until(async () => {
    const { body } = await admin.get(`ClientApplication/${id}`)
    return body.name === 'Day laboratory of the ward'
  }, 60_000)
})

t.test('keeps typed text when the session ends', async (t) => {
  await page.goto(`${baseUrl}console/members/new-client`)
  await page.write('input[name=name]', 'Pharmacy')
  const ask = (path: string, method: string) =>
    page.value<number>(`fetch('/${path}', {
      method: '${method}',
      headers: { Authorization: 'Bearer ' + JSON.parse(sessionStorage.activeLogin).accessToken },
    }).then(({ status }) => status)`)
  await ask('oauth2/logout', 'POST')
  await until(async () => (await ask('auth/me', 'GET')) === 401, 60_000)
  await page.press('form button[type=submit]')
  await reads(page, 'Your session has ended')
  await click(page, 'Sign in again')
  await signInOn(page, email)
  await page.shows(`document.querySelector('input[name=name]')?.value === 'Pharmacy'`)
  await reads(page, 'This is text you typed earlier')
  t.equal(await page.value('location.pathname'), '/console/members/new-client')
  t.same(await barriers(page), [])
})

t.test('an invitation is sent once, also when its answer is lost', async (t) => {
  const invited = anEmail()
  await page.goto(`${baseUrl}console/members/invite`)
  await page.write('input[name=firstName]', 'Joan')
  await page.write('input[name=lastName]', 'Clarke')
  await page.write('input[name=email]', invited)
  await loseAnswers(page, `admin/projects/${project.id}/invite`)
  await page.press('form button[type=submit]')
  await reads(page, 'The service does not respond')
  await page.goto(`${baseUrl}console/members/invite`)
  await reads(page, 'This is text you typed earlier')
  await page.press('form button[type=submit]')
  await page.shows(`location.pathname.startsWith('/console/members/member/')`)
  t.equal((await mailsTo(services, invited)).length, 1)
})

t.test('a member with a narrow policy sees no members, and reads why', async (t) => {
  const reference = { reference: `AccessPolicy/${policy.id}` }
  const other = await aPerson(services, project, { details: { accessPolicy: reference } })
  const narrow = await openConsole(t, { baseUrl, email: other.email, path: '/members' })
  await reads(narrow, 'You do not have access to this page')
  t.notOk(await narrow.value(`document.querySelector('nav a[href="/console/members"]')`))
  t.same(await barriers(narrow), [])
})
