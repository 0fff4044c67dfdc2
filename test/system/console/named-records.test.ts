/** Records under their names: summaries, lists, selections, saved views, references and the search of all pages. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import {
  barriers,
  click,
  OPEN_MENU,
  openConsole,
  reads,
  withText,
} from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t)
const { services, baseUrl, project, admin } = botica
const { email } = await aPerson(services, project, { details: { admin: true } })
const patient = await admin.create({
  resourceType: 'Patient',
  name: [
    { use: 'nickname', given: ['Mari'] },
    { use: 'official', family: 'Quinones', given: ['Maria'] },
  ],
  birthDate: '1985-07-09',
  gender: 'female',
  identifier: [
    { value: 'other' },
    {
      type: {
        coding: [{ system: 'http://terminology.hl7.org/CodeSystem/v2-0203', code: 'MR' }],
      },
      value: 'mrn-1',
    },
  ],
})
const subject = { reference: `Patient/${patient.id}` }
await admin.create({
  resourceType: 'Condition',
  clinicalStatus: {
    coding: [
      { system: 'http://terminology.hl7.org/CodeSystem/condition-clinical', code: 'active' },
    ],
  },
  code: { text: 'Asthma' },
  subject,
})
for (const [day, value] of [
  ['2026-03-01', 23.42857142857143],
  ['2026-04-01', 25],
] as const) {
  await admin.create({
    resourceType: 'Observation',
    status: 'final',
    code: { text: 'Body mass index' },
    subject,
    effectiveDateTime: day,
    valueQuantity: { value, unit: 'kg/m2' },
  })
}
const page = await openConsole(t, {
  baseUrl,
  email,
  path: '/resources/Observation',
  timeZone: 'America/Los_Angeles',
})

const searchHasFocus = `document.activeElement?.getAttribute('aria-label')?.startsWith('Search records')`

async function focus(selector: string): Promise<void> {
  await page.act(
    `!document.querySelector('[aria-label=Loading]') && document.querySelector('${selector}')`,
    `found.scrollIntoView({ block: 'center' }); found.focus()`,
  )
}

t.test('a list shows the names of its records and of their references', async (t) => {
  await reads(page, 'Body mass index')
  await reads(page, 'Maria Quinones')
  await reads(page, '23.43 kg/m2')
  await page.press('th[aria-sort] button')
  await click(page, 'effective[x]')
  await page.shows(`new URLSearchParams(location.search).get('_sort') === 'date'`)
  t.same(await barriers(page), [])
})

t.test('a patient opens with a summary', async (t) => {
  await click(page, 'Maria Quinones')
  await page.shows(`document.querySelector('#title').textContent === 'Maria Quinones'`)
  await reads(page, 'Asthma')
  await reads(page, '1985-07-09 (')
  await page.shows(`document.querySelector('.recharts-line')`)
  // Days are shown as recorded, also where they begin later than in UTC.
  await page.shows(`document.querySelector('.recharts-wrapper').textContent.includes('2026-03-01')`)
  t.same(await barriers(page), [])
  await click(page, 'Edit')
  await page.shows(`document.querySelector('input[name=birthDate]')?.value === '1985-07-09'`)
})

const card = (title: string) => `[...document.querySelectorAll('.mantine-Card-root')]
  .find((one) => one.querySelector('h5, h2')?.textContent === '${title}')`

t.test('a summary has recurring problems, and names the sections with more records', async (t) => {
  const other = await admin.create({ resourceType: 'Patient', name: [{ family: 'Reyes' }] })
  const reference = { reference: `Patient/${other.id}` }
  const system = 'http://terminology.hl7.org/CodeSystem/condition-clinical'
  for (const code of ['active', 'recurrence', 'relapse', 'resolved']) {
    await admin.create({
      resourceType: 'Condition',
      clinicalStatus: { coding: [{ system, code }] },
      code: { text: `${code} problem` },
      subject: reference,
    })
  }
  for (const name of ['1', '2', '3', '4', '5', '6', '7']) {
    await admin.create({
      resourceType: 'DiagnosticReport',
      status: 'final',
      code: { text: `Report ${name}` },
      subject: reference,
    })
  }
  await page.goto(`${baseUrl}console/resources/Patient/${other.id}`)
  await reads(page, 'recurrence problem')
  await reads(page, 'relapse problem')
  t.notOk(await page.value(`document.body.innerText.includes('resolved problem')`))
  const shown = await page.value<string>(`${card('Reports')}.textContent`)
  t.equal(shown.match(/Report \d/g)?.length, 6)
  t.match(shown, 'There are more than 6: show all')
  t.notMatch(await page.value(`${card('Active problems')}.textContent`), 'There are more')
  t.same(await barriers(page), [])
})

t.test('a summary shows the error of a section instead of an empty one', async (t) => {
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    name: 'Desk',
    resource: [
      { resourceType: 'Patient' },
      { resourceType: 'Condition', hiddenFields: ['clinicalStatus'] },
      { resourceType: 'Encounter' },
    ],
  })
  const details = { accessPolicy: { reference: `AccessPolicy/${policy.id}` } }
  const desk = await aPerson(services, project, { details })
  const path = `/resources/Patient/${patient.id}`
  const narrow = await openConsole(t, { baseUrl, email: desk.email, path })
  await narrow.shows(`${card('Active problems')}.querySelector('[role=alert]')`)
  t.notMatch(await narrow.value(`${card('Active problems')}.textContent`), 'None recorded')
  t.match(await narrow.value(`${card('Encounters')}.textContent`), 'None recorded')
  t.same(await barriers(narrow), [])
})

t.test('a type is chosen by typing a part of its name', async () => {
  await page.goto(`${baseUrl}console/resources/Patient`)
  await focus('input[value=Patient]')
  await page.keys('observ')
  // The list selects its first option after the keys are handled.
  await page.shows(
    `document.querySelector('[data-combobox-selected]')?.textContent === 'Observation'`,
  )
  await page.key('Enter')
  await page.shows(`location.pathname === '/console/resources/Observation'`)
})

t.test('a new record shows the usual elements, and is saved only with content', async (t) => {
  await page.goto(`${baseUrl}console/resources/Patient/new`)
  await page.shows(`document.querySelector('#save')?.disabled`)
  await focus('input[name=family]')
  await page.keys('Okoro')
  await page.shows(`!document.querySelector('#save').disabled`)
  await page.press('#save')
  await page.shows(`document.querySelector('#title').textContent === 'Okoro'`)
  t.same(await barriers(page), [])
  const { body } = await admin.get<{ total: number }>('Patient?family=Okoro&_total=accurate')
  t.equal(body.total, 1)
})

t.test('a reference is picked by name', async (t) => {
  await page.goto(`${baseUrl}console/resources/Condition/new`)
  await focus('[data-element=subject] input[aria-label="Find a record"]')
  await page.keys('quin')
  await click(page, 'Maria Quinones1985-07-09 · mrn-1')
  await page.shows(
    `document.querySelector('[data-element=subject] input[name=reference]').value === 'Patient/${patient.id}'`,
  )
  t.same(await barriers(page), [])
  await page.press('#save')
  await page.shows(`location.pathname.match(/Condition\\/[-0-9a-f]{36}$/)`)
  const id = await page.value<string>(`location.pathname.split('/').at(-1)`)
  const { body } = await admin.get(`Condition/${id}`)
  t.same(body.subject, { ...subject, display: 'Maria Quinones' })
})

t.test('does not pick from the results of an older text, and announces more records', async (t) => {
  for (let number = 1; number <= 11; number++) {
    await admin.create({
      resourceType: 'Patient',
      name: [{ family: 'Zhou', given: ['Wei'] }],
      birthDate: `1990-01-${String(number).padStart(2, '0')}`,
    })
  }
  await page.goto(`${baseUrl}console/resources/Condition/new`)
  const field = '[data-element=subject] input[aria-label="Find a record"]'
  await focus(field)
  await page.keys('zhou')
  await page.shows(`${withText('Wei Zhou1990-01-11')}`)
  await reads(page, 'There are more: type more of the name')
  const shown = `[...document.querySelectorAll('[role=option]')].filter((one) => one.offsetParent)`
  t.equal(await page.value(`${shown}.length`), 11)
  // The field scrolls the list by the arrow keys.
  t.same(await barriers(page, [...OPEN_MENU, 'scrollable-region-focusable']), [])
  // Searches that take longer than the typing.
  await page.value(`{
    const { fetch } = window
    window.fetch = async (url, init) => {
      if (String(url).includes('Patient')) await new Promise((go) => { window.answer = go })
      return fetch(url, init)
    }
  }`)
  await page.keys(' quin')
  await page.key('ArrowDown')
  await page.key('Enter')
  await page.act(`${shown}[0]`, 'found.click()')
  t.equal(await page.value(`document.querySelector('${field}').value`), 'zhou quin')
  t.notOk(
    await page.value(`document.querySelector('[data-element=subject] input[name=reference]')`),
  )
  t.notOk(await page.value(`document.querySelector('form [role=alert]')`), 'nothing was saved')
  await page.shows('window.answer')
  await page.value('window.answer()')
  await reads(page, 'No matching records')
})

t.test('Ctrl-K does not open a result of an older text', async (t) => {
  await page.goto(`${baseUrl}console/`)
  await page.press('#find')
  await page.shows(searchHasFocus)
  await page.keys('zhou')
  await reads(page, 'Patient · 1990-01-11')
  await reads(page, 'There are more: type more of the name')
  await page.value(`{
    const { fetch } = window
    window.fetch = async (url, init) => {
      if (init?.method === 'POST') await new Promise((go) => { window.answer = go })
      return fetch(url, init)
    }
  }`)
  await page.keys('x')
  await page.key('Enter')
  t.equal(await page.value('location.pathname'), '/console/')
  await page.shows('window.answer')
  await page.key('Enter')
  t.equal(await page.value('location.pathname'), '/console/')
  await page.value('window.answer()')
  await reads(page, 'No matching records or pages')
})

t.test('another picked record leaves nothing of the old one in the reference', async (t) => {
  const extension = [{ url: 'urn:x', valueString: 'kept' }]
  const { id } = await admin.create({
    resourceType: 'Condition',
    code: { text: 'Asthma' },
    subject: {
      extension,
      type: 'Patient',
      identifier: { system: 'urn:mrn', value: '1' },
      display: 'Another person',
      _display: { extension },
    },
  })
  await page.goto(`${baseUrl}console/resources/Condition/${id}/form`)
  await focus('[data-element=subject] input[aria-label="Find a record"]')
  await page.keys('quin')
  await click(page, 'Maria Quinones1985-07-09 · mrn-1')
  await page.press('#save')
  await reads(page, 'Saving removes this')
  await page.press('[data-confirm]')
  await reads(page, 'Saved')
  const { body } = await admin.get(`Condition/${id}`)
  t.same(body.subject, { extension, ...subject, display: 'Maria Quinones' })
})

t.test('selected records are deleted together, after a question', async (t) => {
  for (const name of ['One', 'Two', 'Three']) {
    await admin.create({ resourceType: 'Organization', name })
  }
  await page.goto(`${baseUrl}console/resources/Organization`)
  await page.press('[aria-label="Select One"]')
  await page.press('[aria-label="Select Three"]')
  await reads(page, '2 selected')
  await click(page, 'Delete')
  await reads(page, 'each can be restored')
  t.same(await barriers(page), [])
  await page.press('[data-confirm]')
  await reads(page, '2 records deleted')
  const { body } = await admin.get<{ entry: { resource: { name: string } }[] }>('Organization')
  t.same(
    body.entry.map(({ resource }) => resource.name),
    ['Two'],
  )
})

t.test('a search is kept as a view with its columns', async () => {
  await page.goto(`${baseUrl}console/resources/Patient?family=Quinones`)
  await click(page, 'Saved views')
  await focus('input[aria-label="Name of this view"]')
  await page.keys('Mine')
  await click(page, 'Save view')
  await page.goto(`${baseUrl}console/resources/Patient`)
  await reads(page, 'Okoro')
  await click(page, 'Saved views')
  await click(page, 'Mine')
  await page.shows(`location.search === '?family=Quinones'`)
})

t.test('Ctrl-K finds records, bots and pages', async (t) => {
  await page.goto(`${baseUrl}console/`)
  await page.shows(`document.querySelector('#find')`)
  await page.key('Find')
  await page.shows(searchHasFocus)
  await page.keys('quin')
  await reads(page, 'Patient · 1985-07-09')
  t.same(await barriers(page), [])
  await page.key('Enter')
  await page.shows(`location.pathname === '/console/resources/Patient/${patient.id}'`)
  await page.press('#find')
  await page.shows(searchHasFocus)
  await page.keys('Subscrip')
  await reads(page, 'Page')
  await page.key('Enter')
  await page.shows(`location.pathname === '/console/subscriptions'`)
})

t.test('a search that fails shows why, instead of no matching records', async (t) => {
  const busy = {
    resourceType: 'OperationOutcome',
    issue: [{ severity: 'error', code: 'transient', details: { text: 'The database is busy' } }],
  }
  const answerBusy = (expression: string, status: number, body: object) =>
    page.value(`{
      const { fetch } = window
      window.fetch = async (url, init) => (${expression})
        ? Response.json(${JSON.stringify(body)}, { status: ${status} })
        : await fetch(url, init)
    }`)
  const entry = Array.from({ length: 200 }, () => ({ response: { status: '503', outcome: busy } }))
  const batch = { resourceType: 'Bundle', type: 'batch-response', entry }
  await page.goto(`${baseUrl}console/resources/Condition/new`)
  await page.shows(`document.querySelector('#find')`)
  await answerBusy(`init?.method === 'POST'`, 200, batch)
  await page.press('#find')
  await page.shows(searchHasFocus)
  await page.keys('quin')
  await reads(page, 'The database is busy')
  t.notOk(await page.value(`document.body.innerText.includes('No matching records')`))
  t.same(await barriers(page), [])
  await page.key('Escape')
  await page.shows(`!document.querySelector('[role=dialog]')`)

  await answerBusy(`String(url).includes('/Patient?')`, 503, busy)
  await focus('[data-element=subject] input[aria-label="Find a record"]')
  await page.keys('zzz')
  await reads(page, 'The database is busy')
  t.notOk(await page.value(`document.body.innerText.includes('No matching records')`))

  await page.goto(`${baseUrl}console/resources/Patient/${patient.id}`)
  await reads(page, 'Asthma')
  await answerBusy(`init?.method === 'POST'`, 200, batch)
  await click(page, 'Referred to by')
  await page.shows(`location.pathname.endsWith('/referrers')`)
  await reads(page, 'The database is busy')
  t.notOk(await page.value(`document.body.innerText.includes('Nothing refers to this record')`))
})
