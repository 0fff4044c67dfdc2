/** Records are found, made, edited, compared, brought back and saved as files; typed text outlives its session. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import {
  barriers,
  click,
  endSession,
  loseAnswers,
  openConsole,
  reads,
  saved,
  signInOn,
} from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t)
const { services, baseUrl, project, admin } = botica
const { email } = await aPerson(services, project, { details: { admin: true } })
const patient = await admin.create({
  resourceType: 'Patient',
  name: [{ family: 'Quinones', given: ['Maria'] }],
  gender: 'female',
})
await admin.create({
  resourceType: 'Observation',
  status: 'final',
  code: { text: 'Heart rate' },
  subject: { reference: `Patient/${patient.id}` },
  effectiveDateTime: '2026-03-01T10:00:00Z',
  valueQuantity: { value: 72, unit: '/min' },
})
const place = `console/resources/Patient/${patient.id}`
const page = await openConsole(t, { baseUrl, email, path: '/resources/Patient' })
const downloads = mkdtempSync(join(tmpdir(), 'botica-downloads-'))
t.teardown(() => rmSync(downloads, { recursive: true, force: true }))

t.test('the address holds the search, and the result can be saved as a table', async (t) => {
  await reads(page, 'Quinones')
  await reads(page, '1 in total')
  await page.goto(`${baseUrl}console/resources/Patient?family=Nobody`)
  await reads(page, 'Nothing found')
  t.same(await barriers(page), [])
  await page.goto(`${baseUrl}console/resources/Patient?family=Quinones`)
  await reads(page, 'family=Quinones')
  await page.saveTo(downloads)
  await click(page, 'Save the result')
  await click(page, 'CSV')
  t.match(await saved(join(downloads, 'Patient.csv')), /Quinones/)
})

t.test('shows why the service rejects a search', async (t) => {
  await page.goto(`${baseUrl}console/resources/Patient?family=Quinones`)
  await page.write('input[aria-label=Parameter]', 'language')
  await click(page, 'language')
  await page.write('input[aria-label=Value]', 'es')
  await click(page, 'Add')
  await reads(page, 'language=es')
  await reads(page, 'family=Quinones')
  await page.goto(`${baseUrl}console/resources/Patient?family=Quinones&birthdate=nonsense`)
  await reads(page, 'Invalid date value: nonsense')
  await reads(page, 'family=Quinones')
  await reads(page, 'birthdate=nonsense')
  t.same(await barriers(page), [])
})

t.test('a condition takes a picked date and rejects half a date at its field', async (t) => {
  const DATE = 'input[type=date][aria-label=Value]'
  await page.goto(`${baseUrl}console/resources/Patient?family=Quinones`)
  await page.write('input[aria-label=Parameter]', 'birthdate')
  await click(page, 'birthdate')
  await page.shows(`document.querySelector('${DATE}')`)
  await page.value(`document.querySelector('select[aria-label=Comparison]').focus()`)
  await page.keys('after')
  await page.value(`document.querySelector('${DATE}').focus()`)
  await page.keys('0102')
  await click(page, 'Add')
  await reads(page, 'Complete the date: day, month and year')
  t.same(await barriers(page), [])
  t.equal(await page.value('location.search'), '?family=Quinones')
  await page.value(`document.querySelector('${DATE}').blur()`)
  await page.value(`document.querySelector('${DATE}').focus()`)
  await page.keys('01021900')
  await click(page, 'Add')
  await reads(page, 'birthdate=gt1900-01-02')
})

t.test('a record is edited as a form', async (t) => {
  await page.goto(`${baseUrl}${place}/form`)
  await page.write('input[name=family]', 'Quispe')
  await page.press('#save')
  await reads(page, 'Saved')
  t.match((await admin.get(`Patient/${patient.id}`)).body, { name: [{ family: 'Quispe' }] })
  t.same(await barriers(page), [])
})

t.test('JSON is judged while it is typed', async (t) => {
  await page.goto(`${baseUrl}${place}/json`)
  await page.write('.cm-content', '{ "resourceType": "Patient", ')
  await reads(page, 'Not valid JSON of a record yet')
  await page.write('.cm-content', JSON.stringify({ ...patient, gender: 'purple' }))
  await reads(page, 'Patient.gender')
  t.same(await barriers(page), [])
  await page.press('#save')
  await reads(page, 'The record was not saved')
})

t.test('unfinished JSON outlives other views and a reload', async (t) => {
  const has = (text: string) =>
    page.shows(`document.querySelector('.cm-content')?.textContent.includes('${text}')`)
  await page.goto(`${baseUrl}${place}/json`)
  await page.write('.cm-content', '{ "resourceType": "Patient", "gender": "oth')
  await click(page, 'Form')
  await reads(page, 'Finish it before you edit the form')
  await page.shows(`document.querySelector('input[name=family]')?.matches(':disabled')`)
  t.same(await barriers(page), [])
  await click(page, 'JSON')
  await has('"oth')
  await page.goto(`${baseUrl}${place}/json`)
  await reads(page, 'This is text you typed earlier')
  await has('"oth')
  await page.shows(`document.querySelector('#save').disabled`)
})

t.test('typed text outlives its session', async (t) => {
  await page.goto(`${baseUrl}${place}/json`)
  await reads(page, 'This is text you typed earlier')
  await page.write('.cm-content', JSON.stringify({ ...patient, gender: 'other' }))
  await endSession(page)
  // It may be served for some seconds more.
  services.principals.forget()
  await page.press('#save')
  await reads(page, 'Your session has ended')
  t.same(await barriers(page), [])
  await click(page, 'Sign in again')
  await signInOn(page, email)
  await page.shows(`location.pathname === '/${place}/json'`)
  await reads(page, 'This is text you typed earlier')
  await page.shows(`document.querySelector('.cm-content').textContent.includes('"other"')`)
  await page.press('#save')
  await reads(page, 'Saved')
  t.notMatch(await page.value('Object.keys(sessionStorage).join()'), /botica-draft/)
})

t.test('an older version is compared and brought back', async (t) => {
  await page.goto(`${baseUrl}${place}/history`)
  await reads(page, 'Restore version 1')
  await page.shows(
    `document.querySelector('.cm-mergeView .cm-changedLine, .cm-mergeView .cm-deletedLine')`,
  )
  t.same(await barriers(page), [])
  await click(page, 'Restore version 1')
  await reads(page, 'Restored as the newest version')
  t.match((await admin.get(`Patient/${patient.id}`)).body, {
    gender: 'female',
    name: [{ family: 'Quinones' }],
  })
})

t.test('a record is deleted and brought back', async () => {
  await click(page, 'Delete')
  await reads(page, 'Restore a version below')
  await click(page, 'Restore version 1')
  await reads(page, 'Restored as the newest version')
})

t.test('a result is saved whole and with the digits of its numbers', async (t) => {
  const own = mkdtempSync(join(tmpdir(), 'botica-downloads-'))
  t.teardown(() => rmSync(own, { recursive: true, force: true }))
  const body = (value: string) => `{"resourceType":"Observation","status":"final",
    "code":{"text":"Dose"},"valueQuantity":{"value":${value},"unit":"mg"}}`
  const headers = { 'Content-Type': 'application/fhir+json' }
  for (const value of ['1.00', '2.50']) await admin.post('Observation', body(value), headers)
  await page.saveTo(own)
  await page.goto(`${baseUrl}console/resources/Observation?code:text=Dose&_count=1`)
  await reads(page, 'Next page')
  await page.press('[aria-label="Select Dose"]')
  await click(page, 'Save as NDJSON')
  t.match(await saved(join(own, 'Observation.ndjson')), /"value":(1\.00|2\.50),/)
  rmSync(join(own, 'Observation.ndjson'))
  await click(page, 'Save the result')
  await click(page, 'NDJSON')
  const lines = await saved(join(own, 'Observation.ndjson'))
  t.match(lines, '"value":1.00,')
  t.match(lines, '"value":2.50,')
  await click(page, 'Save the result')
  await click(page, 'CSV')
  const table = await saved(join(own, 'Observation.csv'))
  t.match(table, '1.00 mg')
  t.match(table, '2.50 mg')
})

t.test('a list is read whole, and a table counts the items that it leaves out', async (t) => {
  const urls = ['a', 'b', 'c', 'd', 'd'].map((name) => `https://example.org/${name}`)
  const { id } = await admin.create({
    resourceType: 'ServiceRequest',
    status: 'active',
    intent: 'order',
    subject: { reference: `Patient/${patient.id}` },
    instantiatesUri: urls,
  })
  await page.goto(`${baseUrl}console/resources/ServiceRequest/${id}`)
  await reads(page, 'https://example.org/c')
  t.equal(await page.value(`document.body.innerText.split('https://example.org/d').length`), 3)
  const telecom = ['1', '2', '3', '4', '5'].map((value) => ({ system: 'phone', value }))
  await admin.create({ resourceType: 'Patient', name: [{ family: 'Callas' }], telecom })
  await page.goto(`${baseUrl}console/resources/Patient?family=Callas`)
  await page.shows(`document.querySelector('tbody').innerText.includes('and 2 more')`)
})

t.test('shows references to a resource and its history', async (t) => {
  await admin.create({
    resourceType: 'Condition',
    code: { text: 'Asthma' },
    subject: { reference: `Patient/${patient.id}` },
    onsetDateTime: '2019-05',
  })
  await page.goto(`${baseUrl}${place}/referrers`)
  await reads(page, 'Observation')
  await page.goto(`${baseUrl}${place}/timeline`)
  await reads(page, 'Heart rate')
  await reads(page, '72 /min')
  await page.shows(
    `[...document.querySelectorAll('#main time')].some((one) => one.textContent === '2019-05')`,
  )
  t.same(await barriers(page), [])
})

t.test('a form creates a record', async (t) => {
  await page.goto(`${baseUrl}console/resources/Basic/new`)
  await page.write('input[name=value]', '42')
  await page.press('#save')
  await reads(page, 'The record was not saved')
  await page.goto(`${baseUrl}console/resources/Organization/new`)
  await page.write('input[name=name]', 'Clinic')
  await page.press('#save')
  await page.shows(`/Organization\\/[\\da-f-]{36}$/.test(location.pathname)`)
  t.match((await admin.get('Organization?name=Clinic')).body, { entry: [{}] })
})

t.test('a save whose answer is lost creates one record when it is repeated', async (t) => {
  const form = `${baseUrl}console/resources/Organization/new`
  await page.goto(form)
  await page.write('input[name=name]', 'Harbour')
  await loseAnswers(page, 'fhir/R4/Organization')
  await page.press('#save')
  await reads(page, 'The record was not saved')
  await page.press('#save')
  await page.shows(`!document.querySelector('#save[data-loading]')`)
  await page.goto(form)
  await reads(page, 'This is text you typed earlier')
  await page.press('#save')
  await page.shows(`/Organization\\/[\\da-f-]{36}$/.test(location.pathname)`)
  const found = await admin.get<{ readonly entry: readonly unknown[] }>('Organization?name=Harbour')
  t.equal(found.body.entry.length, 1)
})
