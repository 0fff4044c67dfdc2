/** A streamed answer on the test bench of a bot: shown part by part, and cut by the reader. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, eventually, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import { barriers, click, openConsole, reads } from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t, { worker: true })
const { admin, services, baseUrl, project } = botica
const { email } = await aPerson(services, project, { details: { admin: true } })

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

const id = await aBot(botica, STREAM, { fields: { streamingEnabled: true, timeout: 120 } })
const page = await openConsole(t, { baseUrl, email, path: `/bots/${id}` })

t.test('the bench shows the parts of an answer as they come', async (t) => {
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
