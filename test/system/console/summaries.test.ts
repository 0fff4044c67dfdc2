/** Clinical facts in the summary of a patient and on the page of a record. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import { barriers, click, openConsole, reads } from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const { services, baseUrl, project, admin } = await openBotica(t)
const { email } = await aPerson(services, project, { details: { admin: true } })
const page = await openConsole(t, { baseUrl, email })

const card = (title: string) => `[...document.querySelectorAll('.mantine-Card-root')]
  .find((one) => one.querySelector('h5, h2')?.textContent === '${title}')`

t.test('a summary leaves out wrong entries, and shows a status that is not recorded', async (t) => {
  const { id } = await admin.create({ resourceType: 'Patient', name: [{ family: 'Osei' }] })
  const reference = { reference: `Patient/${id}` }
  const coded = (system: string, code: string) => ({
    coding: [{ system: `http://terminology.hl7.org/CodeSystem/${system}`, code }],
  })
  for (const code of ['confirmed', 'refuted', 'entered-in-error']) {
    const clinical = (system: string) =>
      code === 'entered-in-error' ? {} : { clinicalStatus: coded(system, 'active') }
    await admin.create({
      resourceType: 'Condition',
      code: { text: `Problem that is ${code}` },
      ...clinical('condition-clinical'),
      verificationStatus: coded('condition-ver-status', code),
      subject: reference,
    })
    await admin.create({
      resourceType: 'AllergyIntolerance',
      code: { text: `Allergy that is ${code}` },
      ...clinical('allergyintolerance-clinical'),
      verificationStatus: coded('allergyintolerance-verification', code),
      patient: reference,
    })
  }
  await admin.create({
    resourceType: 'Condition',
    code: { text: 'Gout' },
    subject: reference,
  })
  await admin.create({
    resourceType: 'AllergyIntolerance',
    clinicalStatus: coded('allergyintolerance-clinical', 'resolved'),
    code: { text: 'Milk' },
    patient: reference,
  })
  await admin.create({
    resourceType: 'Observation',
    status: 'entered-in-error',
    code: { text: 'Mistaken weight' },
    subject: reference,
    valueQuantity: { value: 700, unit: 'kg' },
  })
  await page.goto(`${baseUrl}console/resources/Patient/${id}`)
  await reads(page, 'Problem that is confirmed')
  const problems = await page.value<string>(`${card('Active problems')}.textContent`)
  t.match(problems, 'Goutstatus not recorded')
  const allergies = await page.value<string>(`${card('Allergies')}.textContent`)
  t.match(allergies, 'Milkresolved')
  t.match(allergies, 'Allergy that is confirmedactive')
  t.notMatch(problems + allergies, /refuted|entered-in-error/)
  t.match(await page.value(`${card('Observations')}.textContent`), 'None recorded')
  t.same(await barriers(page), [])
})

t.test('draws the values of one code and one unit, and shows their limits', async (t) => {
  const { id } = await admin.create({ resourceType: 'Patient', name: [{ family: 'Ito' }] })
  const observe = async (day: string, code: string, valueQuantity: object) => {
    await admin.create({
      resourceType: 'Observation',
      status: 'final',
      code: { coding: [{ system: 'urn:codes', code }], text: 'Body weight' },
      subject: { reference: `Patient/${id}` },
      effectiveDateTime: day,
      valueQuantity,
    })
  }
  await observe('2026-01-01', 'weight', { value: 154, unit: 'lb' })
  await observe('2026-02-01', 'weight', { value: 70, unit: 'kg' })
  await observe('2026-03-01', 'weight', { value: 71, unit: 'kg' })
  await observe('2026-04-01', 'weight', { value: 72, unit: 'kg' })
  await observe('2026-05-01', 'dry-weight', { value: 69, unit: 'kg' })
  await observe('2026-06-01', 'weight', { value: 5, unit: 'kg', comparator: '<' })
  await observe('2026-07-01', 'weight', { value: 3, comparator: '<' })
  await page.goto(`${baseUrl}console/resources/Patient/${id}`)
  await page.shows(`document.querySelector('.recharts-line')`)
  t.equal(await page.value(`document.querySelectorAll('.recharts-line-dot').length`), 3)
  await reads(page, 'only a limit is known: <5 kg (2026-06-01)')
  await page.press('[aria-label="Kind of value"]')
  await page.shows(`document.querySelectorAll('[role=option]').length === 4`)
  t.same(
    await page.value(
      `[...document.querySelectorAll('[role=option]')].map((one) => one.textContent)`,
    ),
    [
      'Body weight (kg) urn:codes|weight',
      'Body weight',
      'Body weight (kg) urn:codes|dry-weight',
      'Body weight (lb)',
    ],
  )
  t.match(await page.value(`${card('Observations')}.textContent`), /Body weight<3/)
})

t.test('medication requests have the name of their medication', async (t) => {
  const { id } = await admin.create({ resourceType: 'Patient', name: [{ family: 'Novak' }] })
  const medication = await admin.create({
    resourceType: 'Medication',
    code: { text: 'Amoxicillin 500 mg' },
  })
  const request = {
    resourceType: 'MedicationRequest',
    status: 'active',
    intent: 'order',
    category: [{ text: 'Community' }],
    subject: { reference: `Patient/${id}` },
    authoredOn: '2026-05-01',
  }
  const referring = await admin.create({
    ...request,
    medicationReference: { reference: `Medication/${medication.id}` },
  })
  await admin.create({
    ...request,
    contained: [{ resourceType: 'Medication', id: 'own', code: { text: 'Ibuprofen 400 mg' } }],
    medicationReference: { reference: '#own' },
  })
  await admin.create({
    ...request,
    medicationReference: { identifier: { value: 'unknown here' } },
  })
  await page.goto(`${baseUrl}console/resources/Patient/${id}`)
  for (const name of ['Amoxicillin 500 mg', 'Ibuprofen 400 mg']) {
    await page.shows(`${card('Active medications')}.textContent.includes('${name}')`)
  }
  t.match(await page.value(`${card('Active medications')}.textContent`), 'MedicationRequest …')
  await click(page, 'Timeline')
  for (const name of ['Amoxicillin 500 mg', 'Ibuprofen 400 mg']) await reads(page, name)
  t.notOk(await page.value(`document.body.innerText.includes('Community')`))
  await page.goto(`${baseUrl}console/resources/MedicationRequest/${referring.id}`)
  await page.shows(`document.querySelector('#title').textContent === 'Amoxicillin 500 mg'`)
  t.match(await page.value('document.title'), /^Amoxicillin 500 mg – /)
})

t.test('shows extensions and contained records of a record', async (t) => {
  const url = 'http://hl7.org/fhir/StructureDefinition/data-absent-reason'
  const { id } = await admin.create({
    resourceType: 'Patient',
    name: [{ family: 'Unknown' }],
    _birthDate: { extension: [{ url, valueCode: 'asked-declined' }] },
    _gender: { extension: [{ url: 'urn:other', valueString: 'x' }] },
    modifierExtension: [{ url: 'urn:example:not-a-person', valueBoolean: true }],
    contained: [{ resourceType: 'Organization', id: 'own', name: 'Own' }],
    managingOrganization: { reference: '#own' },
  })
  await page.goto(`${baseUrl}console/resources/Patient/${id}`)
  const line = 'This record has a modifier extension, extensions, contained records: see JSON.'
  await reads(page, line)
  await reads(page, 'urn:example:not-a-person true')
  const row = (name: string) => `[...document.querySelectorAll('tr')]
    .find((one) => one.querySelector('th')?.textContent === '${name}')?.innerText`
  t.match(await page.value(row('Birth date')), 'no value: asked-declined')
  t.match(await page.value(row('Gender')), 'no value: the reason is not recorded')
  t.match(await page.value('document.body.innerText'), /Born\s+no value: asked-declined/)
  t.same(await barriers(page), [])
  await page.goto(`${baseUrl}console/resources/Patient/${id}/form`)
  await reads(page, line)
  t.same(await barriers(page), [])
  await page.press('[data-hidden-parts] a')
  await page.shows(`document.querySelector('.cm-content')?.textContent.includes('urn:other')`)

  const plain = await admin.create({ resourceType: 'Patient', name: [{ family: 'Plain' }] })
  await page.goto(`${baseUrl}console/resources/Patient/${plain.id}`)
  await page.shows(`document.querySelector('table[aria-label=Patient]')`)
  t.notOk(await page.value(`document.querySelector('[data-hidden-parts]')`))
})

t.test('names values that have a code of several parts', async (t) => {
  const { id } = await admin.create({
    resourceType: 'ServiceRequest',
    status: 'active',
    intent: 'order',
    subject: { display: 'Nobody' },
    occurrenceTiming: { code: { text: 'Twice a day' } },
  })
  await page.goto(`${baseUrl}console/resources/ServiceRequest/${id}`)
  await reads(page, 'Twice a day')
  await admin.create({
    resourceType: 'Observation',
    status: 'final',
    code: { text: 'Blood pressure' },
    component: [
      { code: { text: 'Systolic' }, valueQuantity: { value: 120, unit: 'mmHg' } },
      { code: { coding: [{ system: 'urn:codes', code: 'dia', display: 'Diastolic' }] } },
    ],
  })
  await page.value(`localStorage.setItem('botica-columns-Observation', '["component"]')`)
  await page.goto(`${baseUrl}console/resources/Observation?code:text=Blood`)
  await reads(page, 'Systolic')
  await reads(page, 'Diastolic')
  t.notOk(await page.value(`document.body.innerText.includes('[object Object]')`))
})

t.test('orders the events of a patient by time, also of several time zones', async (t) => {
  const { id } = await admin.create({ resourceType: 'Patient', name: [{ family: 'Hansen' }] })
  for (const [text, effectiveDateTime] of [
    ['First event', '2026-03-02T08:00:00+13:00'],
    ['Second event', '2026-03-01T23:00:00Z'],
    ['Third event', '2026-03-01T20:00:00-05:00'],
  ] as const) {
    await admin.create({
      resourceType: 'Observation',
      status: 'final',
      code: { text },
      subject: { reference: `Patient/${id}` },
      effectiveDateTime,
    })
  }
  await page.goto(`${baseUrl}console/resources/Patient/${id}/timeline`)
  await reads(page, 'First event')
  t.match(
    await page.value('document.body.innerText'),
    /Third event[\s\S]*Second event[\s\S]*First event/,
    'the newest is first',
  )
})
