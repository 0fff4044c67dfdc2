/** A bot is written, deployed, broken, fixed and replayed by clicks alone. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { AT_GATE, aGate } from '../../fixtures/bots/gates.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import {
  barriers,
  click,
  holdAnswers,
  loseAnswers,
  openConsole,
  reads,
  withText,
} from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t, { worker: true, env: { BOT_INPUT_ARCHIVE: 'true' } })
const { services, baseUrl, project, superAdmin } = botica
await superAdmin.put(`Project/${project.id}`, {
  ...project,
  setting: [{ name: 'BOT_INPUT_ARCHIVE', valueBoolean: true }],
})
const { email } = await aPerson(services, project, { details: { admin: true } })
const page = await openConsole(t, { baseUrl, email, path: '/bots' })

/** The bench has an editor too. */
const CODE = '.cm-content[aria-label="Code of the bot"]'

const code = (body: string) =>
  `export async function handler(medplum: any, event: { input: { name: string, gate?: string } }) {\n  ${body}\n}\n`

t.test('a form requires a name and creates the bot', async () => {
  await reads(page, 'No bots yet')
  await click(page, 'New bot')
  await page.shows(`document.querySelector('[role=dialog] form')`)
  await page.press('[role=dialog] button[type=submit]')
  await reads(page, 'A bot needs a name')
  await page.write('[role=dialog] input', 'Greeter')
  await page.press('[role=dialog] button[type=submit]')
  await page.shows(
    `location.pathname.startsWith('/console/bots/') && document.querySelector('${CODE}')`,
  )
  await reads(page, 'Greeter')
})

t.test('shows the line of a mistake in rejected code', async (t) => {
  await page.write(CODE, code('const x: = 1'))
  await page.press('#deploy')
  await reads(page, 'The code was not deployed')
  await reads(page, '(line 2, column')
  await page.shows(`document.querySelector('.cm-lint-marker-error')`)
  t.same(await barriers(page), [])
})

t.test('deploys valid code and runs it on the bench', async (t) => {
  await page.write(
    CODE,
    code(
      `console.log('Greeting', event.input.name)
  await medplum.createResource({ resourceType: 'Basic', code: { text: 'greeting' } })${AT_GATE}
  return { hello: event.input.name.toUpperCase() }`,
    ),
  )
  await page.press('#deploy')
  await reads(page, 'Deployed: the next run uses this code')
  await page.press('#run')
  await page.shows(`document.querySelector('#answer')?.textContent.includes('ADA')`)
  t.same(await barriers(page), [])
})

t.test('the bench hides the answer of the last run while the next one runs', async () => {
  const { gate, open } = aGate(botica.admin)
  await page.write('[aria-label="Input"]', JSON.stringify({ name: 'Bob', gate }))
  await page.press('#run')
  await page.shows(`document.querySelector('#live')?.textContent.includes('Greeting Bob')`)
  await page.shows(`!document.querySelector('#answer') && !${withText('Open this run')}`)
  await open()
  await page.shows(`document.querySelector('#answer')?.textContent.includes('BOB')`)
  await page.shows(withText('Open this run'))
})

t.test('the bench keeps the inputs of its kinds apart', async (t) => {
  const input = `document.querySelector('[aria-label="Input"]').textContent`
  await page.write('[aria-label="Input"]', '{ "name": "Carl" }')
  await click(page, 'Text')
  await page.shows(`${input} === ''`)
  await page.write('[aria-label="Input"]', 'Hello')
  await click(page, 'JSON')
  await page.shows(`${input} === '{ "name": "Carl" }'`)
  await click(page, 'Text')
  await page.shows(`${input} === 'Hello'`)
  await click(page, 'JSON')
  await page.shows(`${input}.includes('Carl')`)
  t.same(await barriers(page), [])
})

t.test('a run that fails shows why, with its log', async (t) => {
  await page.write('[aria-label="Input"]', '{ "nobody": true }')
  await page.press('#run')
  await reads(page, 'Cannot read properties of undefined')
  await click(page, 'Open this run')
  await reads(page, 'The run failed')
  await page.shows(`document.querySelector('#log')?.textContent.includes('Greeting')`)
  await page.shows(`document.querySelector('#input')?.textContent.includes('"nobody": true')`)
  await page.shows(`/POST Basic.*201.*Basic.*version 1/s.test(
    document.querySelector('[aria-label="Calls and writes"]')?.textContent)`)
  t.same(await barriers(page), [])
})

t.test('runs the fixed bot with the same input again', async () => {
  const failed = await page.value<string>('location.pathname')
  await page.goto(`${baseUrl}${failed.split('/runs')[0]?.slice(1)}`)
  await page.shows(`document.querySelector('${CODE}')?.textContent.includes('Greeting')`)
  await page.write(
    CODE,
    code("console.log('Mended')\n  return { hello: event.input.name ?? 'nobody' }"),
  )
  await page.press('#deploy')
  await reads(page, 'Deployed: the next run uses this code')
  await page.goto(`${baseUrl}${failed.slice(1)}`)
  await page.press('#replay')
  await page.shows(`location.pathname !== '${failed}'`)
  await page.shows(`document.querySelector('#log')?.textContent.includes('Mended')`)
})

t.test('a replay whose answer is lost is one run when it is repeated', async (t) => {
  const place = await page.value<string>('location.pathname')
  const [, , , id] = place.split('/')
  const count = async () => {
    const { body } = await botica.admin.get<Listed>(`Bot/${id}/$runs?_count=100`)
    return body.parameter.filter(({ name }) => name === 'run').length
  }
  const before = await count()
  await loseAnswers(page, `fhir/R4/Bot/${id}/$replay`)
  await page.press('#replay')
  await reads(page, 'The service does not respond')
  await page.goto(`${baseUrl}${place.slice(1)}`)
  await page.press('#replay')
  await page.shows(`location.pathname !== '${place}' && document.querySelector('#log')`)
  t.equal(await count(), before + 1)
  // The next one is meant as another one.
  const first = await page.value<string>('location.pathname')
  await page.press('#replay')
  await page.shows(`location.pathname !== '${first}' && document.querySelector('#log')`)
  t.equal(await count(), before + 2)
})

interface Listed {
  readonly parameter: readonly { readonly name: string }[]
}

t.test('code that others deployed meanwhile is not overwritten unseen', async (t) => {
  const path = `Bot/${(await page.value<string>('location.pathname')).split('/')[3]}`
  await page.goto(`${baseUrl}console/bots/${path.split('/')[1]}`)
  const has = (text: string) =>
    page.shows(`document.querySelector('${CODE}')?.textContent.includes('${text}')`)
  await has('Mended')
  const mine = code("console.log('Mended')\n  return { mine: true }")
  await page.write(CODE, mine)
  const deployment = { code: code('return { theirs: true }'), filename: 'index.ts' }
  t.equal((await botica.admin.post(`${path}/$deploy`, deployment)).status, 200)
  const run = async () => (await botica.admin.post(`${path}/$execute`, {})).body
  await page.press('#deploy')
  await reads(page, 'Other code was deployed while you were typing')
  t.match(await run(), { theirs: true })
  await has('mine: true')
  t.ok(await page.value(`document.querySelector('#deploy').disabled`))
  await click(page, 'Compare with the deployed code')
  await page.shows(`document.querySelector('.cm-mergeView').textContent.includes('theirs')`)
  t.same(await barriers(page), [])
  await click(page, 'Keep my code')
  await page.press('#deploy')
  await until(async () => Reflect.has(await run(), 'mine'), 60_000)
})

t.test('keeps code typed during a deployment', async (t) => {
  const [, , , id] = (await page.value<string>('location.pathname')).split('/')
  await page.goto(`${baseUrl}console/bots/${id}`)
  await page.shows(`document.querySelector('${CODE}')?.textContent.includes('mine: true')`)
  await page.write(CODE, code("console.log('Mended')\n  return { held: true }"))
  const release = await holdAnswers(page, `fhir/R4/Bot/${id}/$deploy`)
  await page.press('#deploy')
  await page.shows(`document.querySelector('#deploy[data-loading]')`)
  await page.keys('// first')
  await release()
  await page.shows(`!document.querySelector('#deploy[data-loading]')`)
  await page.keys(' words')
  await page.shows(`document.querySelector('${CODE}').textContent.includes('// first words')`)
  t.notOk(
    await page.value(`document.body.innerText.includes('Other code was deployed while you were')`),
  )
  await page.press('#deploy')
  await page.shows(`!${withText('Discard')}`)
  t.match((await botica.admin.post(`Bot/${id}/$execute`, {})).body, { held: true })
  const { body } = await botica.admin.get<Deployed>(`Bot/${id}`)
  t.match(await (await fetch(body.sourceCode.url)).text(), '// first words')
})

interface Deployed {
  readonly sourceCode: { readonly url: string }
}

t.test('a log is read while it is written', async (t) => {
  const [, , , id] = (await page.value<string>('location.pathname')).split('/')
  await page.goto(`${baseUrl}console/bots/${id}`)
  await reads(page, 'Listening')
  await botica.admin.post(`Bot/${id}/$execute`, { name: 'Bob' })
  await page.shows(`document.querySelector('#live')?.textContent.includes('Mended')`)
  t.same(await barriers(page), [])
  // Chromium itself reports the answers that refuse something, and that it may not keep the colours of text in an
  // editor that other text is put in place of.
  t.same(
    page.complaints.filter((text) => !/status of 4\d\d|^Applying inline style/.test(text)),
    [],
  )
})
