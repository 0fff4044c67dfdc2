/** Dead letters: the most frequent failures, search, one letter, replay and discard, with real keys. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, deploy, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import { barriers, click, openConsole, reads, withText } from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t, { worker: true })
const { admin, baseUrl, project, services } = botica
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
