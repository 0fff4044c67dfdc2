/** An export is started in a form, watched, and its file saved; the pages show only permitted actions. */
import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { openGate } from '../../fixtures/exports/gate.ts'
import { exitWithoutChromium, type Page } from '../../fixtures/http/chromium.ts'
import {
  barriers,
  click,
  loseAnswers,
  openConsole,
  reads,
  saved,
} from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

exitWithoutChromium(t)
// Its exports are held.
const env = { DATABASE_URL: await createDatabase(t) }
const botica = await openBotica(t, { worker: true, env })
const { services, baseUrl, project, admin } = botica
const patient = await admin.create({ resourceType: 'Patient', name: [{ family: 'Quinones' }] })
const folder = mkdtempSync(join(tmpdir(), 'botica-downloads-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const gate = await openGate(services.database)
const SINCE = '[role=dialog] [type=datetime-local]'

t.test('an administrator exports the project and saves a file', async (t) => {
  const { email } = await aPerson(services, project, { details: { admin: true } })
  const page = await openConsole(t, { baseUrl, email, path: '/jobs' })
  await page.saveTo(folder)
  await reads(page, 'No exports')
  t.same(await barriers(page), [])
  await click(page, 'New export')
  await page.shows(`document.querySelector('${SINCE}')`)
  await page.value(`document.querySelector('${SINCE}').focus()`)
  await page.keys('0102')
  await click(page, 'Start the export')
  await reads(page, 'Complete the date and the time')
  t.equal(await page.value('location.pathname'), '/console/jobs')
  await page.value(`document.querySelector('${SINCE}').blur()`)
  await page.value(`document.querySelector('${SINCE}').focus()`)
  await page.keys('010220200830AM')
  await page.shows(`!document.body.innerText.includes('Complete the date and the time')`)
  await click(page, 'A group')
  await page.write('[role=dialog] [data-path=group]', 'nobody')
  await click(page, 'Start the export')
  await page.shows(
    `document.querySelector('[role=dialog] [role=alert]')?.innerText.includes('found')`,
  )
  t.equal(await page.value(`document.querySelector('${SINCE}').value`), '2020-01-02T08:30')
  await click(page, 'Whole project')
  const open = await gate.close(1)
  await click(page, 'Start the export')
  await page.shows(`location.pathname.startsWith('/console/jobs/exports/')`)
  await reads(page, '% complete')
  await page.shows(`document.querySelector('[role=progressbar][aria-label]')`)
  t.same(await barriers(page), [])
  await open()
  await click(page, 'Save 1.Patient.ndjson')
  const [line = '', ...rest] = (await saved(join(folder, '1.Patient.ndjson'))).split('\n')
  t.match(JSON.parse(line), patient)
  t.same(rest, [''])
  t.notOk(await page.value(`document.querySelector('#main a[href*=".ndjson"]')`))
  t.same(await barriers(page), [])
  const place = await page.value<string>('location.pathname')
  await page.goto(`${baseUrl}console/jobs`)
  await reads(page, 'completed')
  await page.goto(`${baseUrl}console`)
  await reads(page, 'Running jobs')
  t.same(await barriers(page), [])
  await page.goto(`${baseUrl}${place.slice(1)}`)
  await click(page, 'Delete the files')
  await reads(page, 'can no longer be downloaded')
  t.same(await barriers(page), [])
  await page.press('[role=dialog] [data-confirm]')
  await page.shows(`location.pathname === '/console/jobs'`)
  // Chromium itself reports the export that was refused.
  t.same(
    page.complaints.filter((text) => !/status of 404/.test(text)),
    [],
  )
})

/** Chooses a file with this text in the dialog. */
async function chooseFile(page: Page, text: string): Promise<void> {
  await page.act(
    `document.querySelector('input[type=file]')`,
    `const chosen = new DataTransfer()
    chosen.items.add(new File([${JSON.stringify(text)}], 'patients.ndjson'))
    found.files = chosen.files
    found.dispatchEvent(new Event('change', { bubbles: true }))`,
  )
}

t.test('imports a file and shows its rejected lines', async (t) => {
  const { email } = await aPerson(services, project, { details: { admin: true } })
  const page = await openConsole(t, { baseUrl, email, path: '/jobs' })
  await reads(page, 'No imports')
  await click(page, 'New import')
  await click(page, 'Start the import')
  await reads(page, 'Choose at least one file.')
  const id = randomUUID()
  await chooseFile(page, 'no records')
  await click(page, 'Start the import')
  await reads(page, 'patients.ndjson does not start with a record as JSON.')
  await chooseFile(page, `{"resourceType":"Patient","id":"${id}"}\n{"resourceType":"Patient"}\n`)
  await click(page, 'Start the import')
  await page.shows(`location.pathname.startsWith('/console/jobs/imports/')`)
  await reads(page, 'Rejected lines: 1')
  await reads(page, 'Missing id')
  t.same(await barriers(page), [])
  t.equal((await admin.get(`Patient/${id}`)).status, 200)
  await page.goto(`${baseUrl}console/jobs`)
  await page.shows(`document.querySelector('a[href^="/console/jobs/imports/"]')`)
})

t.test('a job is read after a refused token; an answer of a proxy is named', async (t) => {
  const { email } = await aPerson(services, project, { details: { admin: true } })
  const page = await openConsole(t, { baseUrl, email, path: '/jobs' })
  await page.value(`{
    const send = fetch
    const statuses = [401, 502]
    globalThis.fetch = async (input, init) => {
      const isJob = new URL(input, location.href).pathname.includes('/bulkdata/')
      const status = isJob ? statuses.shift() : undefined
      return status ? new Response('<html></html>', { status }) : await send(input, init)
    }
  }`)
  await page.press('a[href^="/console/jobs/imports/"]')
  await reads(page, 'The answer has status 502 and is not from the service')
  t.same(await barriers(page), [])
  await click(page, 'Try again')
  await reads(page, 'Rejected lines: 1')
})

t.test('an export and an import whose answers are lost start once when repeated', async (t) => {
  const { email } = await aPerson(services, project, { details: { admin: true } })
  const page = await openConsole(t, { baseUrl, email, path: '/jobs' })
  const count = async (label: string) => {
    await page.goto(`${baseUrl}console/jobs`)
    await page.shows(
      `document.querySelector('#title') && !document.querySelector('[aria-label=Loading]')`,
    )
    return await page.value<number>(
      `document.querySelectorAll('table[aria-label="${label}"] tbody tr').length`,
    )
  }
  const exports = await count('BulkDataExport')
  await loseAnswers(page, 'fhir/R4/$export')
  await click(page, 'Export everything')
  await reads(page, 'The service does not respond')
  await page.goto(`${baseUrl}console/jobs`)
  await click(page, 'Export everything')
  await page.shows(`location.pathname.startsWith('/console/jobs/exports/')`)
  t.equal(await count('BulkDataExport'), exports + 1)

  const imports = await count('Imports')
  await click(page, 'New import')
  await chooseFile(page, `{"resourceType":"Patient","id":"${randomUUID()}"}\n`)
  await page.value('globalThis.whole = fetch; true')
  await loseAnswers(page, 'fhir/R4/$import')
  await click(page, 'Start the import')
  await reads(page, 'The service does not respond')
  await page.value('globalThis.fetch = whole; true')
  await click(page, 'Start the import')
  await page.shows(`location.pathname.startsWith('/console/jobs/imports/')`)
  t.equal(await count('Imports'), imports + 1)
})

t.test('shows a member only the content of a narrow policy, also on a phone', async (t) => {
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    name: 'Front desk',
    resource: [{ resourceType: 'Patient', readonly: true }],
  })
  const access = [{ policy: { reference: `AccessPolicy/${policy.id}` } }]
  const { email } = await aPerson(services, project, { details: { access } })
  const page = await openConsole(t, { baseUrl, email })
  await page.resize(390, 844)
  await reads(page, 'Search and edit the records you have access to')
  const menu = await page.value<string>(`document.querySelector('nav').textContent`)
  t.match(menu, 'Records')
  t.notMatch(menu, /Bots|Jobs/)
  await page.goto(`${baseUrl}console/resources/Patient/${patient.id}/form`)
  await page.shows(`document.querySelector('input[name=family]')?.matches(':disabled')`)
  t.notOk(await page.value(`Boolean(document.querySelector('#save'))`))
  t.ok(await page.value('document.documentElement.scrollWidth <= innerWidth'))
  t.same(await barriers(page), [])
  await page.goto(`${baseUrl}console/resources/Observation`)
  await reads(page, 'That failed')
  await page.goto(`${baseUrl}console/nothing-here`)
  await reads(page, 'Page not found')
})
