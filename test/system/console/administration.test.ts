/** Pages of administration as an administrator, a member with a narrow policy and a super administrator open them. */
import t from 'tap'
import { ALL_QUEUES, openBotica, SYSTEM_PROJECT_ID, until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { exitWithoutChromium, type Page } from '../../fixtures/http/chromium.ts'
import {
  barriers,
  click,
  openConsole,
  reads,
  selectOption,
  withText,
} from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

exitWithoutChromium(t)
// Its worker takes all waiting jobs of the database.
const env = { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: ALL_QUEUES }
const botica = await openBotica(t, { worker: true, env })
const { services, baseUrl, project, admin } = botica
const policy = await admin.create({
  resourceType: 'AccessPolicy',
  name: 'Ward',
  resource: [{ resourceType: 'Patient', readonly: true }],
})
const bot = await aBot(botica, handler('return 1'))
await admin.put(`Bot/${bot}`, { ...(await admin.get(`Bot/${bot}`)).body, cronString: '0 3 * * *' })
const subscription = await admin.create({
  resourceType: 'Subscription',
  status: 'active',
  reason: 'Reach the partner',
  criteria: 'Patient?',
  channel: { type: 'rest-hook', endpoint: 'http://127.0.0.1:9/nobody' },
})
const patient = await admin.create(aPatient())

const PAGES: readonly (readonly [path: string, text: string])[] = [
  ['/members', 'People, programs and bots'],
  ['/members/clients', 'Test client'],
  ['/members/bots', 'Test bot'],
  ['/members/invite', 'Send an e-mail with a link'],
  ['/members/new-client', 'Redirect addresses'],
  ['/policies', 'Ward'],
  ['/policies/new', 'Which records a member can see'],
  [`/policies/${policy.id}`, 'What would this member see?'],
  ['/project', 'Unknown codes'],
  ['/project/secrets', 'No secrets yet'],
  ['/project/mail', 'Mails of the project go through this server'],
  ['/project/sites', 'No sites yet'],
  ['/project/parameters', 'No search parameters of your own'],
  ['/project/limits', 'GraphQL depth'],
  ['/subscriptions', 'Patient?'],
  [`/subscriptions/${subscription.id}`, 'Reach the partner'],
  ['/schedules', '0 3 * * * (UTC)'],
  ['/api', 'openapi.json'],
]
const SERVICE: readonly (readonly [path: string, text: string])[] = [
  ['/service', 'Database migrations'],
  ['/service/projects', 'Create the project'],
  ['/service/queues', 'Bot runs by project'],
  ['/service/workers', 'Worker metrics'],
  ['/service/mails', 'The outbox is empty'],
  ['/service/metrics', 'Event loop lag p99'],
]

const NOT_YOURS = 'You do not have access to this page'

async function open(page: Page, path: string): Promise<void> {
  await page.goto(`${baseUrl}console${path}`)
  await page.shows(
    `document.querySelector('#main [id=title], #main [role=alert]') && !document.querySelector('[aria-label=Loading]')`,
  )
}

const { email } = await aPerson(services, project, { details: { admin: true } })
const page = await openConsole(t, { baseUrl, email })

t.test('an administrator opens every page on a phone and on a desktop', async (t) => {
  const fits = async (path: string, width: number, height: number) => {
    await page.resize(width, height)
    await page.shows(`innerWidth === ${width}`)
    const place = `${path} at ${width} by ${height}`
    t.same(await barriers(page), [], place)
    t.ok(await page.value('document.documentElement.scrollWidth <= innerWidth'), place)
  }
  for (const [path, text] of PAGES) {
    await page.resize(390, 844)
    await open(page, path)
    await reads(page, text)
    await fits(path, 390, 844)
    await fits(path, 1440, 900)
    await reads(page, text)
  }
  t.same(page.complaints, [])
  await page.goto(`${baseUrl}console/service`)
  await reads(page, NOT_YOURS)
  t.notOk(await page.value(`document.querySelector('nav a[href="/console/service"]')`))
})

t.test('a member with a narrow policy finds no page of administration', async (t) => {
  const details = { accessPolicy: { reference: `AccessPolicy/${policy.id}` } }
  const narrow = await aPerson(services, project, { details })
  const page = await openConsole(t, { baseUrl, email: narrow.email })
  const shown = await page.value<string>(`document.querySelector('nav').innerText`)
  t.notMatch(shown, /Members|Access policies|Project|Subscriptions|Schedules|Service/)
  const own = ['/bots', '/jobs', '/service', '/resources/Patient/new']
  for (const path of [...own, ...PAGES.slice(0, -1).map(([path]) => path)]) {
    await page.goto(`${baseUrl}console${path}`)
    await reads(page, NOT_YOURS)
    t.notOk(
      await page.value(`Boolean(document.querySelector('#main :is([role=alert], form)'))`),
      path,
    )
  }
  t.same(await barriers(page), [])
})

t.test('a super administrator sees the service', async (t) => {
  const home = { resourceType: 'Project', id: SYSTEM_PROJECT_ID, name: 'Super Admin' }
  const root = await aPerson(services, home, { details: { admin: true } })
  const page = await openConsole(t, { baseUrl, email: root.email, path: '/service' })
  for (const [path, text] of [...SERVICE, ...PAGES.slice(0, 1)]) {
    await open(page, path)
    await reads(page, text)
    t.same(await barriers(page), [], path)
  }
  await open(page, '/service/projects')
  await page.press('form button[type=submit]')
  await reads(page, 'Project name is required')
  await page.write('input[name=name]', 'Second clinic')
  await page.press('form button[type=submit]')
  await page.shows(`document.querySelector('table').innerText.includes('Second clinic')`)
  t.same(await barriers(page), [])
})

/** Each form with the text that is typed by the name of its field, and the words of the service about it. */
const REFUSED: readonly (readonly [
  path: string,
  typed: Readonly<Record<string, string>>,
  words: string,
])[] = [
  [
    '/members/invite',
    { firstName: 'Grace', lastName: 'Hopper', email: 'nobody' },
    'email must be an e-mail address',
  ],
  [
    '/members/new-client',
    { name: 'Laboratory', redirectUris: 'javascript:1' },
    'redirectUris[0] must be https',
  ],
  [`/resources/Bot/${bot}/form`, { cronString: 'every day' }, 'cronString must have five fields'],
  ['/project/sites', { site: 'Portal' }, 'Site Portal needs a list of domains'],
]

t.test('shows errors of bad input in the form and keeps its fields', async (t) => {
  for (const [path, typed, words] of REFUSED) {
    await page.goto(`${baseUrl}console${path}`)
    const fields = Object.entries(typed).map(
      ([name, text]) => [`#main form :is(input, textarea)[name=${name}]`, text] as const,
    )
    for (const [field, text] of fields) await page.write(field, text)
    await page.press('#main form [type=submit]')
    await page.shows(
      `document.querySelector('#main form')?.innerText.includes(${JSON.stringify(words)})`,
    )
    for (const [field, text] of fields) {
      t.equal(await page.value(`document.querySelector('${field}').value`), text, path)
    }
  }
  t.same(await barriers(page), [])
})

t.test('writes a policy, shows its error, and saves the corrected one', async (t) => {
  await open(page, '/policies/new')
  await click(page, 'JSON')
  await page.write('.cm-content', '{ "resourceType": ')
  await click(page, 'Save')
  await reads(page, 'Not valid JSON')
  const text = (type: string) =>
    JSON.stringify({
      resourceType: 'AccessPolicy',
      name: 'Desk',
      resource: [{ resourceType: type }],
    })
  await page.write('.cm-content', text('Patent'))
  await click(page, 'Save')
  await reads(page, 'AccessPolicy.resource[0]')
  await page.write('.cm-content', text('Patient'))
  await click(page, 'Save')
  await page.shows(`/policies\\/[0-9a-f-]{36}$/.test(location.pathname)`)
  t.equal((await admin.get('AccessPolicy?name=Desk&_total=accurate')).body.total, 1)
})

t.test('settings, secrets, sites and search parameters are written', async (t) => {
  await open(page, '/project')
  const address = `/admin/projects/${project.id}`
  const stored = async () => (await admin.get<Untyped>(address)).body.project
  await page.shows(`document.querySelector('select[name=fullTextSearch]')`)
  await selectOption(page, 'fullTextSearch', 'true')
  await click(page, 'Save')
  await reads(page, 'Saved')
  t.match((await stored()).setting, [{ name: 'fullTextSearch', valueBoolean: true }])

  await open(page, '/project/secrets')
  await page.write('input[name=value]', 'the key')
  await click(page, 'Save')
  await reads(page, 'A secret needs a name')
  await page.write('input[name=name]', 'PARTNER_KEY')
  await click(page, 'Save')
  await page.shows(`document.querySelector('table')?.innerText.includes('PARTNER_KEY')`)
  t.notOk(await page.value(`document.body.innerHTML.includes('the key')`))
  t.match((await stored()).secret, [{ name: 'PARTNER_KEY', valueString: 'the key' }])

  await open(page, '/project/sites')
  await page.write('input[name=site]', 'Portal')
  await click(page, 'Save')
  await reads(page, 'Site Portal needs a list of domains')
  await page.write('textarea[name=domain]', 'portal.example.org')
  await click(page, 'Save')
  await page.shows(`document.querySelector('table')?.innerText.includes('portal.example.org')`)

  await open(page, '/project/parameters')
  await page.write('input[name=code]', 'eye')
  await page.write('input[name=base]', 'Patient')
  await page.write('input[name=expression]', 'Patient.gender.')
  await click(page, 'Save')
  await page.shows(`document.querySelector('form [role=alert], form [aria-invalid=true]')`)
  await page.write('input[name=expression]', 'Patient.gender')
  await click(page, 'Save')
  await page.shows(`document.querySelector('table')?.innerText.includes('Patient.gender')`)
  t.same(await barriers(page), [])
})

t.test(
  'a list of the project keeps items that others have added since the page was opened',
  async (t) => {
    await open(page, '/project/secrets')
    const address = `/admin/projects/${project.id}`
    const stored = async () => (await admin.get<Untyped>(address)).body.project
    const names = (items: readonly { readonly name: string }[]) => items.map(({ name }) => name)
    const json = { 'Content-Type': 'application/json' }
    const add = async (path: string, list: string, item: object) => {
      const { [list]: items = [] } = await stored()
      const { status } = await admin.post(`${address}/${path}`, [...items, item], json)
      t.equal(status, 200)
    }
    await page.shows(`document.querySelector('input[name=value]')`)
    await add('secrets', 'secret', { name: 'THEIRS', valueString: 'x' })
    await page.write('input[name=name]', 'OURS')
    await page.write('input[name=value]', 'y')
    await click(page, 'Save')
    await page.shows(`document.querySelector('table')?.innerText.includes('OURS')`)
    t.same(names((await stored()).secret), ['PARTNER_KEY', 'THEIRS', 'OURS'])

    await open(page, '/project/sites')
    await add('sites', 'site', { name: 'Theirs', domain: ['theirs.example.org'] })
    await page.write('input[name=site]', 'Ours')
    await page.write('textarea[name=domain]', 'ours.example.org')
    await click(page, 'Save')
    await page.shows(`document.querySelector('table')?.innerText.includes('ours.example.org')`)
    t.same(names((await stored()).site), ['Portal', 'Theirs', 'Ours'])

    await open(page, '/project')
    await page.shows(`document.querySelector('select[name=validateTerminology]')`)
    await add('settings', 'setting', { name: 'ownSetting', valueInteger: 7 })
    await add('settings', 'setting', {
      name: 'validateQuestionnaireResponse',
      valueString: 'refuse',
    })
    await selectOption(page, 'validateTerminology', 'off')
    await click(page, 'Save')
    await reads(page, 'Saved')
    t.same((await stored()).setting, [
      { name: 'fullTextSearch', valueBoolean: true },
      { name: 'ownSetting', valueInteger: 7 },
      { name: 'validateQuestionnaireResponse', valueString: 'refuse' },
      { name: 'validateTerminology', valueString: 'off' },
    ])
  },
)

t.test('shows undelivered events of a Subscription and sends them again', async (t) => {
  await open(page, `/subscriptions/${subscription.id}`)
  await page.shows(`document.querySelector('table')?.innerText.includes('Patient/${patient.id}')`)
  await click(page, 'Send the newest version')
  await reads(page, 'The newest version was queued for delivery')
  const path = `/admin/projects/${project.id}/subscriptions/${subscription.id}`
  await until(async () => (await admin.get<Untyped>(path)).body.deliveries.length > 1, 60_000)
  await page.value(`document.querySelector('input[name=since]').focus()`)
  await page.keys('0102')
  await click(page, 'Redeliver failed events')
  await reads(page, 'Complete the date and the time')
  await page.value(`document.querySelector('input[name=since]').blur()`)
  await page.value(`document.querySelector('input[name=since]').focus()`)
  await page.keys('010220200830AM')
  await click(page, 'Redeliver failed events')
  await reads(page, 'deliveries queued again')
  t.same(await barriers(page), [])
})

t.test('a list of more records than a page reads the next page', async (t) => {
  const rows = (label: string) =>
    `document.querySelectorAll('table[aria-label="${label}"] tbody tr').length`
  for (let number = 0; number < 21; number++) {
    await admin.create({
      resourceType: 'Subscription',
      status: 'off',
      reason: 'x',
      criteria: `Patient?identifier=${number}`,
      channel: { type: 'rest-hook', endpoint: `Bot/${bot}` },
    })
  }
  await open(page, `/bots/${bot}/details`)
  await page.shows(`${rows('Subscriptions that start it')} === 20`)
  await click(page, 'Show more')
  await page.shows(`${rows('Subscriptions that start it')} === 21`)
  t.notOk(await page.value(withText('Show more')))

  const { id } = await admin.create({ resourceType: 'Organization', name: 'Version 1' })
  for (let version = 2; version <= 101; version++) {
    await admin.put(`Organization/${id}`, {
      resourceType: 'Organization',
      id,
      name: `Version ${version}`,
    })
  }
  await open(page, `/resources/Organization/${id}/history`)
  await page.shows(`${rows('Versions')} === 100`)
  await click(page, 'Show more')
  await page.shows(`${rows('Versions')} === 101`)
  t.same(await barriers(page), [])
})

t.test('the overview of a member shows an added type after many others', async () => {
  const types = (await admin.get<Untyped>('metadata')).body.rest[0].resource.map(
    ({ type }: { readonly type: string }) => type,
  )
  const [added, ...others]: string[] = types.filter((type: string) => /^[C-E]/.test(type))
  const many = await admin.create({
    resourceType: 'AccessPolicy',
    name: 'Many types',
    resource: others.slice(0, 32).map((resourceType) => ({ resourceType })),
  })
  const details = { accessPolicy: { reference: `AccessPolicy/${many.id}` } }
  const { membership } = await aPerson(services, project, { details })
  await open(page, `/members/member/${membership.id}`)
  const items = `[...document.querySelectorAll('[data-overview] li')]`
  await page.shows(`${items}.length === 30`)
  await reads(page, '2 more types have entries')
  await page.act(`document.querySelector('[data-add-type]')`, 'found.focus()')
  await page.keys(String(added))
  await page.key('ArrowDown')
  await page.key('Enter')
  await page.shows(`${items}.length === 31 && ${items}.at(-1).innerText.includes('${added}')`)
})
