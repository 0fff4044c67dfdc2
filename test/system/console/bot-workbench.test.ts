/**
 * A bot on its page: made from a template, written with completion, tested next to its code and log, with streamed
 * answers; and its versions, which are compared, get a share, are made live and rolled back by clicks alone.
 */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, eventually, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import { barriers, click, OPEN_MENU, openConsole, reads } from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t, { worker: true, env: { BOT_INPUT_ARCHIVE: 'true' } })
const { admin, services, baseUrl, project, superAdmin } = botica
const { email } = await aPerson(services, project, { details: { admin: true } })
const page = await openConsole(t, { baseUrl, email, path: '/bots', timeZone: 'Asia/Tokyo' })

const CODE = '[aria-label="Code of the bot"]'
const START = `import type { BotEvent, MedplumClient } from '@medplum/core'
import type { Patient } from '@medplum/fhirtypes'
export async function handler(medplum: MedplumClient, event: BotEvent<Patient>) {`
const SUGGESTIONS = `document.querySelector('.cm-tooltip-autocomplete')?.textContent`

t.test('a new bot gets the code of a template', async (t) => {
  await click(page, 'New bot')
  await page.write('[role=dialog] input', 'Result')
  await page.write('[role=dialog] input[placeholder="Empty bot"]', 'Patient of')
  await reads(page, 'one line with its patient')
  t.same(await barriers(page, OPEN_MENU), [])
  await click(
    page,
    'Patient of resultInput: an Observation. Answer: one line with its patient and its performer.',
  )
  await page.press('[role=dialog] button[type=submit]')
  await page.shows(
    `document.querySelector('${CODE}')?.textContent.includes('BotEvent<Observation>')`,
  )
})

t.test('members of the client, the event and FHIR types are completed', async (t) => {
  const begin = async (line: string) => {
    await page.write(CODE, `${START}\n  ${line}`)
  }
  await begin('await med')
  await page.keys('plum.createRes')
  await page.shows(`${SUGGESTIONS}?.includes('createResourceIfNoneExist')`)
  await reads(page, 'Creates a new FHIR resource')
  t.same(await barriers(page), [])
  await begin('const { KEY } = event')
  await page.keys('.sec')
  await page.shows(`${SUGGESTIONS}?.includes('secrets')`)
  await begin('return event.input.name[0]')
  await page.keys('.fam')
  await page.shows(`${SUGGESTIONS}?.includes('family')`)
  await begin(`await medplum.searchResources('Pat`)
  await page.keys('ien')
  await page.shows(`${SUGGESTIONS}?.includes('Patient')`)
})

t.test('a wrong type is marked and explained while typing', async (t) => {
  const mark = `document.querySelector('.cm-lintRange-warning')?.textContent`
  await page.write(CODE, `${START}\n  return event.input.nmae\n}\n`)
  await page.shows(`${mark} === 'nmae'`)
  await page.hover(`document.querySelector('.cm-lintRange-warning')`)
  await reads(page, "Property 'nmae' does not exist on type 'Patient'")
  t.same(await barriers(page), [])
  await page.write(CODE, `${START}\n  return event.input.name\n}\n`)
  await page.shows(`${mark} === undefined`)
})

t.test('the log is read next to the code, in the zone of the reader', async (t) => {
  await reads(page, 'Listening')
  await page.write(
    CODE,
    `export const handler = async (medplum: unknown, event: unknown) => console.log('heard')\n`,
  )
  await page.press('#deploy')
  await reads(page, 'Deployed: the next run uses this code')
  await page.press('#run')
  await page.shows(`document.querySelector('#live')?.textContent.includes('heard')`)
  const [, shown = ''] =
    /(\S+ \S+) INFO heard/.exec(await page.value(`document.querySelector('#live').textContent`)) ??
    []
  const aheadOfUtc = (Date.parse(`${shown.replace(' ', 'T')}Z`) - Date.now()) / 3_600_000
  t.equal(Math.round(aheadOfUtc), 9, shown)
  // The editor is made again with the deployed source.
  const left = (name: string) => `document.querySelector('${name}').getBoundingClientRect().left`
  await page.shows(`${left(CODE)} < ${left('[aria-label="Input"]')}`)
  await page.shows(`${left(CODE)} < ${left('#live')}`)
})

t.test('on a phone the three are below each other', async (t) => {
  await page.resize(390, 844)
  await page.shows(
    `document.querySelector('#run').getBoundingClientRect().top > document.querySelector('#deploy').getBoundingClientRect().bottom`,
  )
  await page.shows('document.documentElement.scrollWidth <= innerWidth')
  t.same(await barriers(page), [])
})

/** Streams the text of Basics with the identifier of its input, as they are created, until one has the text `end`. */
const STREAM = handler(`const out = event.responseStream
  out.startStreaming(200, { 'Content-Type': 'text/event-stream' })
  await out.write('begin\\n')
  for (let sent = 0; ;) {
    const found = await medplum.searchResources('Basic', 'identifier=' + event.input.name + '&_sort=_lastUpdated')
    for (const { code } of found.slice(sent)) await out.write(code.text + '\\n')
    sent = found.length
    if (found.at(-1)?.code.text === 'end') return out.end()
    await new Promise((resolve) => setTimeout(resolve, 100))
  }`)

const ANSWER = `document.querySelector('#answer')?.textContent`
const say = (text: string) =>
  admin.create({ resourceType: 'Basic', identifier: [{ value: 'Ada' }], code: { text } })

const streaming = await aBot(botica, STREAM, { fields: { streamingEnabled: true, timeout: 120 } })

t.test('the bench shows the parts of an answer as they come', async (t) => {
  await page.resize(1440, 900)
  await page.goto(`${baseUrl}console/bots/${streaming}`)
  await page.press('#run')
  await page.shows(`${ANSWER} === 'begin\\n'`)
  await say('first words')
  await page.shows(`${ANSWER}?.includes('first words') && !${ANSWER}.includes('end')`)
  await page.shows(`document.querySelector('#stop') !== null`)
  await say('end')
  await page.shows(`${ANSWER}?.endsWith('end\\n')`)
  await page.shows(`document.querySelector('#streamed').textContent.includes('22 bytes')`)
  await page.shows(`document.querySelector('#stop') === null`)
  t.same(await barriers(page), [])
  await click(page, 'Open this run')
  await reads(page, '22 bytes, status 200')
})

t.test('stopping the answer disconnects, which cancels the run', async (t) => {
  const endless = await aBot(
    botica,
    handler(`event.responseStream.startStreaming(200, {})
      for (let n = 0; ; n++) {
        await event.responseStream.write('part ' + n + '\\n')
        await new Promise((resolve) => setTimeout(resolve, 100))
      }`),
    { fields: { streamingEnabled: true, timeout: 120 } },
  )
  await page.goto(`${baseUrl}console/bots/${endless}`)
  await page.press('#run')
  await page.shows(`${ANSWER}?.includes('part 3')`)
  await page.press('#stop')
  await page.shows(`document.querySelector('#stop') === null`)
  await page.shows(`${ANSWER}?.includes('part 3')`)
  const status = await eventually(async () => {
    const { body } = await admin.get<Untyped>(`Bot/${endless}/$runs`)
    return body.parameter?.[0]?.part.find(({ name }: Untyped) => name === 'status')?.valueCode
  })
  t.equal(status, 'cancelled')
})

const stored = (await superAdmin.get<Untyped>(`Project/${project.id}`)).body
await superAdmin.put(`Project/${project.id}`, {
  ...stored,
  setting: [{ name: 'BOT_INPUT_ARCHIVE', valueBoolean: true }],
})
const id = await aBot(botica)
const deploy = (body: object) => admin.post<Untyped>(`Bot/${id}/$deploy`, body)
await deploy({ code: handler(`return 'one'`), version: '1.0.0' })
await deploy({ code: handler(`return 'two'`), version: '1.1.0', label: 'staging' })
const SHARE = '[aria-label="Share of staging"]'

t.test('lists the versions with their labels, and compares them', async (t) => {
  await page.goto(`${baseUrl}console/bots/${id}/releases`)
  await reads(page, '1.0.0')
  await reads(page, '1.1.0')
  await click(page, 'Compare with live')
  await reads(page, 'Changes from live to 1.1.0')
  await page.shows(`document.querySelector('pre')?.textContent.includes("+exports.handler")`)
  t.same(await barriers(page), [])
})

t.test('repeats past runs with a version, and shows the answers that differ', async (t) => {
  await until(async () => {
    await execute(admin, id)
    const { body } = await admin.get<Untyped>(`Bot/${id}/$runs`)
    return body.parameter?.some(({ part }: Untyped) =>
      part.some(({ name }: Untyped) => name === 'replayable'),
    )
  }, 60_000)
  await click(page, 'Dry run')
  await reads(page, 'Dry run of 1.1.0')
  await page.shows(`/ 0 the same, [1-9]\\d* different/.test(document.body.innerText)`)
  await page.shows(`[...document.querySelectorAll('tr')].some(({ textContent }) =>
    textContent.includes('one') && textContent.includes('two'))`)
  t.same(await barriers(page), [])
})

t.test('gives a label a share of the calls', async (t) => {
  await page.value(`(() => {
    const select = document.querySelector('${SHARE}')
    Object.getOwnPropertyDescriptor(HTMLSelectElement.prototype, 'value').set.call(select, '100')
    select.dispatchEvent(new Event('change', { bubbles: true }))
  })()`)
  await page.shows(`document.querySelector('${SHARE}')?.value === '100'`)
  t.equal((await execute(admin, id)).text, 'two')
  await page.shows(`document.querySelector('td[data-name="Runs"]')?.textContent === '1'`)
  await page.shows(
    `/\\d m?s$/.test(document.querySelector('td[data-name="Mean time"]')?.textContent)`,
  )
})

t.test('makes a version live, and rolls it back', async (t) => {
  await click(page, 'Make live')
  await reads(page, 'Calls without a label run version 1.1.0 from now on')
  await page.press('[data-confirm]')
  await page.shows(`[...document.querySelectorAll('tr')].some((row) =>
    /1\\.1\\.0/.test(row.textContent) && /live/.test(row.textContent))`)
  t.equal((await execute(admin, id)).text, 'two')
  await click(page, 'Roll back')
  await page.press('[data-confirm]')
  await page.shows(`[...document.querySelectorAll('tr')].some((row) =>
    /1\\.0\\.0/.test(row.textContent) && row.querySelector('td[data-name="Labels"]')?.textContent === 'live')`)
  t.equal((await execute(admin, id)).text, 'one')
  t.same(await barriers(page), [])
})
