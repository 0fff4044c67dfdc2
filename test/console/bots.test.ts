/** A bot is written, deployed, broken, mended and replayed by clicks alone. */
import t from 'tap'
import { openBotica } from '../fixtures/botica.ts'
import { hasChromium } from '../fixtures/http/chromium.ts'
import { barriers, click, openConsole, reads } from '../fixtures/http/console.ts'
import { aPerson } from '../fixtures/people.ts'

if (!hasChromium()) {
  t.pass('there is no chromium here')
  process.exit()
}
const botica = await openBotica(t, { worker: true, env: { BOT_INPUT_ARCHIVE: 'true' } })
const { services, baseUrl, project, superAdmin } = botica
await superAdmin.put(`Project/${project.id}`, {
  ...project,
  setting: [{ name: 'BOT_INPUT_ARCHIVE', valueBoolean: true }],
})
const { email } = await aPerson(services, project, { details: { admin: true } })
const page = await openConsole(t, { baseUrl, email, path: '/bots' })

const code = (body: string) =>
  `export async function handler(medplum: unknown, event: { input: { name: string } }) {\n  ${body}\n}\n`

t.test('it is made by a form that asks for a name', async () => {
  await reads(page, 'No bots yet')
  await click(page, 'New bot')
  await page.shows(`document.querySelector('[role=dialog] form')`)
  await page.press('[role=dialog] button[type=submit]')
  await reads(page, 'A bot needs a name')
  await page.write('[role=dialog] input', 'Greeter')
  await page.press('[role=dialog] button[type=submit]')
  await page.shows(
    `location.pathname.startsWith('/console/bots/') && document.querySelector('.cm-content')`,
  )
  await reads(page, 'Greeter')
})

t.test('code with a mistake is refused at its line', async (t) => {
  await page.write('.cm-content', code('const x: = 1'))
  await page.press('#deploy')
  await reads(page, 'The code was not deployed')
  await reads(page, '(line 2, column')
  await page.shows(`document.querySelector('.cm-lint-marker-error')`)
  t.same(await barriers(page), [])
})

t.test('code without one is deployed, and runs on the bench', async (t) => {
  await page.write(
    '.cm-content',
    code(
      "console.log('Greeting', event.input.name)\n  await (medplum as any).createResource({ resourceType: 'Basic', code: { text: 'greeting' } })\n  return { hello: event.input.name.toUpperCase() }",
    ),
  )
  await page.press('#deploy')
  await reads(page, 'Deployed: the next run uses this code')
  await click(page, 'Test bench')
  await page.press('#run')
  await page.shows(`document.querySelector('#answer')?.textContent.includes('ADA')`)
  t.same(await barriers(page), [])
})

t.test('a run that fails shows why, with its log', async (t) => {
  await page.write('.cm-content', '{ "nobody": true }')
  await page.press('#run')
  await reads(page, 'Cannot read properties of undefined')
  await click(page, 'Open this run')
  await reads(page, 'The run failed')
  await page.shows(`document.querySelector('#log')?.textContent.includes('Greeting')`)
  await page.shows(`document.querySelector('#input')?.textContent.includes('"nobody": true')`)
  await page.shows(`/POST Basic.*201.*Basic.*version 1/s.test(
    document.querySelector('[aria-label="What it called and wrote"]')?.textContent)`)
  t.same(await barriers(page), [])
})

t.test('the mended bot is run with the same input again', async () => {
  const failed = await page.value<string>('location.pathname')
  await page.goto(`${baseUrl}${failed.split('/runs')[0]?.slice(1)}`)
  await page.shows(`document.querySelector('.cm-content')?.textContent.includes('Greeting')`)
  await page.write(
    '.cm-content',
    code("console.log('Mended')\n  return { hello: event.input.name ?? 'nobody' }"),
  )
  await page.press('#deploy')
  await reads(page, 'Deployed: the next run uses this code')
  await page.goto(`${baseUrl}${failed.slice(1)}`)
  await page.press('#replay')
  await page.shows(`location.pathname !== '${failed}'`)
  await page.shows(`document.querySelector('#log')?.textContent.includes('Mended')`)
})

t.test('a log is read while it is written', async (t) => {
  const [, , , id] = (await page.value<string>('location.pathname')).split('/')
  await page.goto(`${baseUrl}console/bots/${id}/live`)
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
