/**
 * Dead letters with real keys: the most frequent failures, search, one letter, replay and discard. Then runs of all bots,
 * schedules by choices, and failures counted alike on every page.
 */
import t from 'tap'
import { ALL_QUEUES, openBotica, until } from '../../fixtures/botica.ts'
import {
  aBot,
  deploy,
  eventually,
  execute,
  handler,
  type Untyped,
} from '../../fixtures/bots/bots.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
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
const { email } = await aPerson(services, project, { details: { admin: true } })
const page = await openConsole(t, { baseUrl, email, path: '/dead-letters' })
const bot = await aBot(botica, handler('throw new Error(event.input.text)'))

const rows = (table: string) =>
  `[...document.querySelectorAll('table[aria-label="${table}"] tbody tr')].map(({ innerText }) => innerText)`
const hasRow = (table: string, ...texts: readonly string[]) =>
  `${rows(table)}.some((row) => ${JSON.stringify(texts)}.every((text) => row.includes(text)))`
const hasRows = (table: string, count: number) => `${rows(table)}.length === ${count}`
const dialogButton = (attribute: string) => `document.querySelector('[role=dialog] ${attribute}')`

async function letters(query = ''): Promise<number> {
  const { body } = await admin.get<Untyped>(`Bot/$dead-letters?${query}`)
  return body.parameter?.length ?? 0
}

/** Types with the keys into the field of this name. */
async function type(name: string, text: string): Promise<void> {
  await page.shows(`document.querySelector('input[name=${name}]')`)
  await page.value(`document.querySelector('input[name=${name}]').select()`)
  await page.value(`document.querySelector('input[name=${name}]').focus()`)
  await page.keys(text)
}

/** Presses Enter on a focused button. */
async function enter(button: string): Promise<void> {
  await page.shows(button)
  await page.value(`${button}.focus()`)
  await page.key('Enter')
}

t.test('a project without failures has an empty list with a hint', async (t) => {
  await reads(page, 'No dead letters')
  t.same(await barriers(page), [])
})

t.test('shows the most frequent failures and the letters, and narrows them', async (t) => {
  for (const text of ['Partner 7 is unknown', 'Partner 7 is unknown', 'Bed <b>9</b> is full']) {
    await execute(admin, bot, { text }, { Prefer: 'respond-async' })
  }
  await until(async () => (await letters()) === 3, 90_000)
  await page.shows(hasRow('Most frequent failures', `Bot/${bot}`, 'Partner 7 is unknown', '2'))
  await page.shows(hasRow('Letters', 'asynchronous run', 'Bed <b>9</b> is full'))
  await page.shows(hasRows('Letters', 3))
  t.same(await barriers(page), [])

  await type('error', 'bed')
  await page.shows(hasRows('Letters', 1))
  t.equal(await page.value('new URLSearchParams(location.search).get("error")'), 'bed')
  await click(page, 'delivery')
  await page.shows(hasRows('Letters', 0))
  await enter(withText('Clear the filter'))
  await page.shows(hasRows('Letters', 3))
  // The first group is the largest.
  await enter(`document.querySelector('table[aria-label="Most frequent failures"] tbody a')`)
  await page.shows(hasRows('Letters', 2))
  await page.shows(hasRows('Most frequent failures', 1))
})

t.test('replays all letters of the filter at a rate', async (t) => {
  await deploy(admin, bot, handler('return event.input.text'))
  await enter(withText('Replay all of the filter'))
  await type('rate', '50')
  t.same(await barriers(page, ['region']), [])
  await enter(dialogButton('[data-confirm]'))
  await reads(page, '2 letters will be replayed')
  await until(async () => (await letters()) === 1, 90_000)
  await page.shows(hasRows('Letters', 0))
})

t.test('shows a letter with its run, and discards it for a reason', async (t) => {
  await page.goto(`${baseUrl}console/dead-letters`)
  await page.shows(hasRows('Letters', 1))
  await enter(`document.querySelector('table[aria-label="Letters"] tbody a')`)
  await reads(page, 'Bed <b>9</b> is full')
  t.same(await barriers(page), [])
  const letter = String(await page.value('location.pathname'))
    .split('/')
    .at(-1)
  await enter(withText('Log, input and calls'))
  await page.shows(`location.pathname.endsWith('/bots/${bot}/runs/${letter}')`)
  await page.goto(`${baseUrl}console/dead-letters/${letter}`)

  await enter(withText('Discard'))
  await page.shows(`${dialogButton('[data-confirm]')}?.disabled`)
  await type('reason', 'test data')
  await enter(dialogButton('[data-confirm]'))
  await reads(page, '1 letters are discarded')
  await reads(page, 'This letter is gone')
  t.equal(await letters(), 0)
})

t.test('is not for members', async () => {
  const { email } = await aPerson(services, project)
  const member = await openConsole(t, { baseUrl, email, path: '/dead-letters' })
  await member.shows(`!document.body.innerText.includes('Most frequent failures')`)
  await reads(member, 'not')
})

const fields = (name: string) => ({ fields: { name } })
const good = await aBot(botica, handler('return 1'), fields('Good bot'))
const bad = await aBot(botica, handler('throw new Error("no such ward")'), fields('Bad bot'))
const ROWS = `document.querySelector('table[aria-label=Runs] tbody')?.innerText`

t.test('the runs of all bots are listed by time, and selected by outcome and bot', async (t) => {
  for (const id of [good, bad]) await execute(admin, id)
  await page.goto(`${baseUrl}console/runs`)
  await page.shows(`${ROWS}?.includes('Good bot') && ${ROWS}.includes('Bad bot')`)
  t.same(await barriers(page), [])
  await click(page, 'failed')
  await page.shows(`${ROWS}?.includes('no such ward') && !${ROWS}.includes('Good bot')`)
  t.equal(await page.value('location.search'), '?status=failed')
  await click(page, 'All')
  await page.write('input[placeholder="All bots"]', 'Good')
  await click(page, 'Good bot')
  await page.shows(`location.search.includes('bot=${good}')`)
  await page.shows(`${ROWS} && !${ROWS}.includes('no such ward')`)
  await page.goto(`${baseUrl}console/runs?until=2020-01-01T00:00:00.000Z`)
  await reads(page, 'No runs')
})

t.test('the dates of the runs are those of the address', async (t) => {
  const field = `document.querySelector('input[type=datetime-local]')`
  await page.goto(`${baseUrl}console/runs`)
  await page.act(field, 'found.focus()')
  await page.keys('010220200830AM')
  await page.shows(
    `new URLSearchParams(location.search).get('since') === new Date('2020-01-02T08:30').toISOString()`,
  )
  t.equal(await page.value(`${field}.value`), '2020-01-02T08:30')
  await page.press('nav a[href="/console/runs"]')
  await page.shows(`location.search === '' && ${field}.value === ''`)
  await page.goto(`${baseUrl}console/runs?since=nonsense`)
  await page.shows(`document.querySelector('#main [role=alert]')`)
  t.ok(await page.value(`Boolean(${field})`), 'the page is still usable')
})

t.test('a run is opened from the list', async () => {
  await page.goto(`${baseUrl}console/runs?status=failed`)
  await page.press('table[aria-label=Runs] tbody a')
  await reads(page, 'Run of Bad bot')
  await reads(page, 'The run failed')
})

const schedule = async () => {
  const { body } = await admin.get<Untyped>(`Bot/${good}`)
  return { cron: body.cronString, zone: body.extension?.[0]?.valueString }
}

t.test('a form builds a schedule and shows its next runs before it is saved', async (t) => {
  await page.setTimeZone('Asia/Tokyo')
  await page.goto(`${baseUrl}console/schedules`)
  await reads(page, 'No scheduled bots')
  await click(page, 'New schedule')
  await page.write('[role=dialog] input[placeholder="Choose a bot"]', 'Good')
  await click(page, 'Good bot')
  await page.shows(`document.querySelectorAll('#next-runs li').length === 5`)
  t.same(await barriers(page), [])
  await selectOption(page, 'kind', 'weekly')
  await page.shows(`document.querySelector('#next-runs').innerText.match(/Monday/g)?.length === 5`)
  await page.shows(`document.querySelector('#next-runs').innerText.includes('6:00')`)
  t.same(await schedule(), { cron: undefined, zone: undefined }, 'nothing is stored before Save')
  await page.press('#save-schedule')
  await page.shows(`document.querySelector('table')?.innerText.includes('0 6 * * 1 (Asia/Tokyo)')`)
  t.same(await schedule(), { cron: '0 6 * * 1', zone: 'Asia/Tokyo' })
})

t.test('a chosen schedule outlives another version of its bot', async (t) => {
  await page.press('table a')
  await page.shows(`document.querySelector('select[name=kind]')?.value === 'weekly'`)
  await selectOption(page, 'kind', 'minutes')
  const { body } = await admin.get<Untyped>(`Bot/${good}`)
  await admin.put(`Bot/${good}`, { ...body, description: 'Deployed meanwhile' })
  await page.press('#save-schedule')
  await page.shows(`document.querySelector('#main [role=alert]')`)
  await eventually(async () => {
    await page.press('#save-schedule')
    return (await schedule()).cron === '*/15 * * * *' ? true : undefined
  })
  const changed = (await admin.get<Untyped>(`Bot/${good}`)).body
  t.match(changed, { description: 'Deployed meanwhile' })
  await admin.put(`Bot/${good}`, { ...changed, cronString: '0 6 * * 1' })
  await page.goto(`${baseUrl}console/schedules`)
})

t.test('a schedule is changed and removed on the page of its bot', async (t) => {
  await page.press('table a')
  await page.shows(`document.querySelector('select[name=kind]')?.value === 'weekly'`)
  await selectOption(page, 'kind', 'minutes')
  await page.press('#save-schedule')
  await eventually(async () => ((await schedule()).cron === '*/15 * * * *' ? true : undefined))
  await page.goto(await page.value('location.href'))
  await page.shows(`document.querySelector('select[name=kind]')?.value === 'minutes'`)
  await selectOption(page, 'kind', 'custom')
  await page.write('input[name=cron]', 'every day')
  await reads(page, 'This schedule cannot be used')
  await reads(page, 'must have five fields')
  t.same(await barriers(page), [])
  await click(page, 'Remove the schedule')
  await page.press('[data-confirm]')
  await eventually(async () => ((await schedule()).cron === undefined ? true : undefined))
  t.same(await schedule(), { cron: undefined, zone: undefined })
})

t.test(
  'shows the same failures of a Subscription at home, in the list and on its page',
  async (t) => {
    const subscription = await admin.create({
      resourceType: 'Subscription',
      status: 'active',
      reason: 'test',
      criteria: 'Patient?',
      channel: { type: 'rest-hook', endpoint: 'http://127.0.0.1:9/nobody' },
    })
    await admin.create(aPatient())
    await page.goto(`${baseUrl}console/subscriptions/${subscription.id}`)
    await page.shows(`document.querySelector('table')?.innerText.includes('failed')`)
    await page.shows(String.raw`/active\s+failing[^]*Failed\s+1/.test(document.body.innerText)`)
    t.same(await barriers(page), [])
    await page.goto(`${baseUrl}console/subscriptions`)
    await page.shows(`/active\\s*failing/.test(document.querySelector('table')?.innerText)`)
    await page.goto(`${baseUrl}console/`)
    await reads(page, 'A subscription has failed deliveries')
    t.same(await barriers(page), [])
  },
)
