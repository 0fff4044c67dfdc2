/** Read operations of US Core, IPS, HRex and the standard, with the caller's rights and limits. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, aParameters, aPatient, aPractitioner } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica
const stranger = (await botica.createTenant()).admin

interface Found extends Resource {
  readonly total: number
  readonly entry?: readonly {
    readonly fullUrl: string
    readonly resource: Resource & Readonly<Record<string, unknown>>
    readonly search?: { readonly score: number; readonly extension: readonly object[] }
  }[]
}

const listIds = ({ entry = [] }: Found) => entry.map(({ resource }) => resource.id)

const LOINC = 'http://loinc.org'
const patient = await admin.create(aPatient())
const subject = { reference: `Patient/${patient.id}` }
const nobody = (await memberUnder(botica, { entries: [{ resourceType: 'Organization' }] })).client

const aDocument = (code: string, date: string, start: string, more: object = {}) =>
  admin.create({
    resourceType: 'DocumentReference',
    status: 'current',
    type: { coding: [{ system: LOINC, code }] },
    subject,
    date,
    content: [{ attachment: { contentType: 'text/plain', data: 'aGVsbG8=' } }],
    context: { period: { start, end: start } },
    ...more,
  })

t.test(
  'returns the newest document of each type, or those of a period, from $docref',
  async (t) => {
    const old = await aDocument('34133-9', '2020-01-02T00:00:00Z', '2019-05-01')
    const recent = await aDocument('34133-9', '2021-01-02T00:00:00Z', '2020-05-01')
    const letter = await aDocument('57133-1', '2019-01-02T00:00:00Z', '2018-05-01')
    await aDocument('34133-9', '2022-01-02T00:00:00Z', '2021-05-01', { status: 'superseded' })
    const path = `DocumentReference/$docref?patient=${patient.id}`

    const newest = await admin.get<Found>(path)
    t.match(newest, { status: 200, body: { type: 'searchset', total: 2 } })
    t.same(listIds(newest.body), [recent.id, letter.id])
    const ofType = await admin.get<Found>(`${path}&type=${LOINC}|57133-1`)
    t.same(listIds(ofType.body), [letter.id])
    const ofTime = await admin.post<Found>(
      'DocumentReference/$docref',
      aParameters(
        { name: 'patient', valueId: patient.id },
        { name: 'start', valueDateTime: '2019-01-01' },
        { name: 'end', valueDateTime: '2019-12-31' },
        { name: 'type', valueCodeableConcept: { coding: [{ system: LOINC, code: '34133-9' }] } },
      ),
    )
    t.same(listIds(ofTime.body), [old.id])
    t.same((await admin.get<Found>(`${path}&on-demand=true`)).body.total, 0)
    t.equal((await admin.get('DocumentReference/$docref')).status, 400)
    t.equal((await admin.get(`${path}&start=yesterday`)).status, 400)
    t.equal((await stranger.get(path)).status, 404, 'a patient of another Project')
    t.equal((await nobody.get(path)).status, 403)
  },
)

t.test('returns 400 from $docref for more documents than it reads', async (t) => {
  const { id } = await admin.create(aPatient())
  const resource = {
    resourceType: 'DocumentReference',
    status: 'current',
    subject: { reference: `Patient/${id}` },
    content: [{ attachment: { contentType: 'text/plain', data: 'aGVsbG8=' } }],
    context: { period: { start: '2020-05-01', end: '2020-05-02' } },
  }
  const request = { method: 'POST', url: 'DocumentReference' }
  const add = (count: number) => {
    const entry = Array.from({ length: count }, () => ({ request, resource }))
    return admin.post('', { resourceType: 'Bundle', type: 'transaction', entry })
  }
  const path = `DocumentReference/$docref?patient=${id}`
  await add(1000)
  t.match(await admin.get(`${path}&start=2020`), { status: 200, body: { total: 1000 } })
  await add(1)
  for (const query of ['', '&start=2020']) {
    const answer = await admin.get(`${path}${query}`)
    t.match(answer, { status: 400, body: { issue: [{ code: 'too-costly' }] } })
  }
  t.match(await admin.get(`${path}&type=${LOINC}|none`), { status: 200, body: { total: 0 } })
})

t.test('applies the policy of the caller to $docref', async (t) => {
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'Patient' },
      { resourceType: 'DocumentReference', criteria: `DocumentReference?type=57133-1` },
    ],
  })
  const { body } = await client.get<Found>(`DocumentReference/$docref?patient=${patient.id}`)
  t.ok(body.entry?.every(({ resource }) => JSON.stringify(resource.type).includes('57133-1')))
})

const heartRate = { system: LOINC, code: '8867-4' }
const local = { system: 'urn:local', code: 'hr' }
const category = [
  {
    coding: [
      { system: 'http://terminology.hl7.org/CodeSystem/observation-category', code: 'vital-signs' },
    ],
  },
]
const measured = (coding: object[], effectiveDateTime: string) =>
  admin.create(
    anObservation(`Patient/${patient.id}`, { category, code: { coding }, effectiveDateTime }),
  )

t.test(
  'returns the newest of each code from $lastn, merging codes that share a coding',
  async (t) => {
    const first = await measured([heartRate], '2020-01-01T00:00:00Z')
    const second = await measured([local], '2020-02-01T00:00:00Z')
    const third = await measured([heartRate, local], '2020-03-01T00:00:00Z')
    const weight = await measured([{ system: LOINC, code: '29463-7' }], '2019-01-01T00:00:00Z')
    const weightToo = await measured([{ system: LOINC, code: '29463-7' }], '2019-01-01T00:00:00Z')
    const path = `Observation/$lastn?patient=Patient/${patient.id}&category=vital-signs`

    const one = await admin.get<Found>(path)
    t.equal(one.status, 200)
    t.same(listIds(one.body)[0], third.id)
    t.same(
      new Set(listIds(one.body)),
      new Set([third.id, weight.id, weightToo.id]),
      'of a tie both',
    )
    const two = await admin.get<Found>(`${path}&max=2&code=8867-4,hr`)
    t.same(listIds(two.body), [third.id, second.id])
    const posted = await admin.post<Found>(
      'Observation/$lastn',
      aParameters(
        { name: 'subject', valueReference: subject },
        { name: 'category', valueString: 'vital-signs' },
        { name: 'code', valueCoding: heartRate },
        { name: 'max', valuePositiveInt: 3 },
      ),
    )
    t.same(listIds(posted.body), [third.id, first.id])
    for (const wrong of [
      'Observation/$lastn',
      'Observation/$lastn?category=vital-signs',
      `Observation/$lastn?patient=${patient.id}`,
      `${path}&max=0`,
      `${path}&max=many`,
      `${path}&nothing=1`,
      `${path}&_sort=date`,
      `${path}&_count=1`,
    ]) {
      t.equal((await admin.get(wrong)).status, 400, wrong)
    }
    t.equal((await stranger.get<Found>(path)).body.total, 0)
    t.equal((await nobody.get(path)).status, 403)
  },
)

t.test('returns the Composition and its targets from $document', async (t) => {
  const author = await admin.create(aPractitioner())
  const allergy = await admin.create({
    resourceType: 'AllergyIntolerance',
    patient: subject,
    code: { text: 'Nuts' },
    clinicalStatus: {
      coding: [
        {
          system: 'http://terminology.hl7.org/CodeSystem/allergyintolerance-clinical',
          code: 'active',
        },
      ],
    },
  })
  const written = {
    resourceType: 'Composition',
    status: 'final',
    type: { coding: [{ system: LOINC, code: '11488-4' }] },
    subject,
    date: '2024-01-01',
    author: [{ reference: `Practitioner/${author.id}` }],
    title: 'Consultation',
    section: [{ title: 'Allergies', entry: [{ reference: `AllergyIntolerance/${allergy.id}` }] }],
  }
  const composition = await admin.create(written)
  const path = `Composition/${composition.id}/$document`
  const whole = [composition.id, patient.id, author.id, allergy.id]

  const made = await admin.get<Found>(path)
  t.match(made, { status: 200, body: { type: 'document', identifier: {}, timestamp: String } })
  t.same(listIds(made.body), whole)
  t.match((await admin.post('Bundle/$validate', made.body)).body, {
    issue: [{ severity: /^(info|warn)/ }],
  })
  t.equal((await admin.get(`Bundle/${made.body.id}`)).status, 404, 'it is not stored')
  t.same(
    listIds((await admin.get<Found>(`Composition/$document?id=${composition.id}`)).body),
    whole,
  )

  const kept = await admin.post<Found>(path, aParameters({ name: 'persist', valueBoolean: true }))
  t.match(kept, { status: 200, body: { type: 'document' } })
  t.same(listIds((await admin.get<Found>(`Bundle/${kept.body.id}`)).body), whole)
  t.equal((await admin.get(`${path}?persist=true`)).status, 400)
  t.equal((await admin.get(`${path}?graph=x`)).status, 400)
  t.equal((await stranger.get(path)).status, 404)

  const entries = [{ resourceType: 'Composition' }, { resourceType: 'Patient' }]
  const { client } = await memberUnder(botica, { entries })
  const part = await client.get(path)
  t.equal(part.status, 422, 'a document is whole or not at all')
  t.notMatch(part.text, 'Nuts')
  t.equal(
    (await client.post(path, aParameters({ name: 'persist', valueBoolean: true }))).status,
    422,
  )
})

t.test('returns the sections of the International Patient Summary from $summary', async (t) => {
  const whose = await admin.create(aPatient({ identifier: [{ system: 'urn:ips', value: 'one' }] }))
  const reference = { reference: `Patient/${whose.id}` }
  const medication = await admin.create({
    resourceType: 'Medication',
    code: { text: 'Aspirin & Co' },
  })
  const statement = await admin.create({
    resourceType: 'MedicationStatement',
    status: 'active',
    subject: reference,
    medicationReference: { reference: `Medication/${medication.id}`, display: 'Aspirin <b>' },
  })
  await admin.create(anObservation('Patient/other'))
  const path = `Patient/${whose.id}/$summary`

  const { status, body } = await admin.get<Found>(path)
  t.equal(status, 200)
  t.equal(body.type, 'document')
  t.equal(body.entry?.[0]?.resource.resourceType, 'Composition')
  const composition = body.entry?.[0]?.resource ?? {}
  const findUrl = (reference: string) =>
    body.entry?.find((one) => one.fullUrl.endsWith(reference))?.fullUrl
  t.match(composition, {
    type: { coding: [{ code: '60591-5' }] },
    subject: { reference: findUrl(`Patient/${whose.id}`) },
    section: [
      {
        code: { coding: [{ code: '48765-2' }] },
        emptyReason: { coding: [{ code: 'unavailable' }] },
      },
      { entry: [{ reference: findUrl(`MedicationStatement/${statement.id}`) }] },
      { code: { coding: [{ code: '11450-4' }] } },
    ],
  })
  t.match(JSON.stringify(composition), 'Aspirin &#60;b&#62;')
  t.ok(listIds(body).includes(medication.id))
  const judged = await admin.post('Bundle/$validate', body)
  t.match(judged.body, { issue: [{ severity: /^(info|warn)/ }] })
  const named = await admin.get<Found>('Patient/$summary?identifier=urn:ips|one')
  t.ok(listIds(named.body).includes(statement.id))
  t.equal((await admin.get('Patient/$summary?identifier=urn:ips|two')).status, 404)
  t.equal((await admin.get('Patient/$summary?identifier=one')).status, 400)
  t.equal((await stranger.get(path)).status, 404)
  t.equal((await stranger.get('Patient/$summary?identifier=urn:ips|one')).status, 404)

  const { client } = await memberUnder(botica, { entries: [{ resourceType: 'Patient' }] })
  const withheld = await client.get<Found>(path)
  t.equal(withheld.status, 200)
  t.notMatch(withheld.text, 'Aspirin')
  t.match(withheld.text, 'withheld')
})

const marta = aPatient({
  identifier: [{ system: 'urn:mpi', value: '1' }],
  name: [{ family: 'Núñez', given: ['Marta'] }],
  gender: 'female',
  birthDate: '1980-02-03',
  telecom: [{ system: 'phone', value: '+1 (555) 867-5309' }],
})
const { id: martaId } = await admin.create(marta)
const { id: twinId } = await admin.create({
  ...marta,
  identifier: [{ system: 'urn:mpi', value: '2' }],
  name: [{ family: 'Nunez', given: ['Maria'] }],
  telecom: [{ system: 'phone', value: '555 000 0000' }],
})
const asked = (resource: object, ...more: object[]) =>
  aParameters({ name: 'resource', resource }, ...more)

t.test('grades candidates of $match', async (t) => {
  const { identifier: _, ...unnumbered } = marta
  const found = await admin.post<Found>('Patient/$match', asked(unnumbered))
  t.equal(found.status, 200)
  t.same(listIds(found.body), [martaId, twinId])
  t.match(found.body.entry?.[0]?.search, {
    mode: 'match',
    score: 0.95,
    extension: [{ valueCode: 'certain' }],
  })
  t.match(found.body.entry?.[1]?.search, { extension: [{ valueCode: 'possible' }] })
  const only = { name: 'onlyCertainMatches', valueBoolean: true }
  t.same(listIds((await admin.post<Found>('Patient/$match', asked(unnumbered, only))).body), [
    martaId,
  ])
  const few = { name: 'count', valueInteger: 1 }
  t.same(listIds((await admin.post<Found>('Patient/$match', asked(unnumbered, few))).body), [
    martaId,
  ])

  const mistyped = { ...marta, name: [{ family: 'Other' }], birthDate: '1999-09-09', telecom: [] }
  const doubtful = await admin.post<Found>('Patient/$match', asked(mistyped))
  t.match(doubtful.body.entry?.[0]?.search, { extension: [{ valueCode: 'possible' }] })
  t.same((await admin.post<Found>('Patient/$match', asked(mistyped, only))).body.total, 0)

  const vague = { ...marta, gender: 'unknown', birthDate: '1980-02' }
  const same = await admin.post<Found>('Patient/$match', asked(vague))
  t.match(same.body.entry?.[0], { resource: { id: martaId }, search: { score: 1 } })

  for (const wrong of [{}, aParameters(), asked({ resourceType: 'Patient', gender: 'male' })]) {
    t.equal((await admin.post('Patient/$match', wrong)).status, 400)
  }
  t.equal((await admin.post('Patient/$match', asked({ resourceType: 'Group' }))).status, 400)
  t.same((await stranger.post<Found>('Patient/$match', asked(marta))).body.total, 0)
  t.equal((await nobody.post('Patient/$match', asked(marta))).status, 403)
})

t.test('ignores hidden elements in $match', async (t) => {
  const entries = [{ resourceType: 'Patient', hiddenFields: ['telecom', 'identifier'] }]
  const { client } = await memberUnder(botica, { entries })
  const found = await client.post<Found>('Patient/$match', asked(marta))
  t.match(found, { status: 200, body: { entry: [{ search: { score: 0.75 } }] } })
  t.notMatch(found.text, '867-5309')
  const byNumber = { resourceType: 'Patient', telecom: marta.telecom, identifier: marta.identifier }
  t.same((await client.post<Found>('Patient/$match', asked(byNumber))).body.total, 0)
})

t.test('returns the unique member from $member-match', async (t) => {
  const coverage = {
    resourceType: 'Coverage',
    status: 'active',
    identifier: [{ system: 'urn:plan', value: 'C1' }],
    subscriberId: 'S1',
    beneficiary: { reference: `Patient/${martaId}` },
    payor: [{ display: 'Plan' }],
  }
  await admin.create(coverage)
  const consent = {
    resourceType: 'Consent',
    status: 'active',
    scope: { coding: [{ code: 'patient-privacy' }] },
    category: [{ text: 'disclosure' }],
    provision: { period: { start: '2020-01-01' } },
  }
  const call = (changes: { patient?: object; coverage?: object; consent?: object } = {}) =>
    aParameters(
      { name: 'MemberPatient', resource: { ...marta, ...changes.patient } },
      { name: 'CoverageToMatch', resource: { ...coverage, ...changes.coverage } },
      { name: 'Consent', resource: { ...consent, ...changes.consent } },
    )
  const ask = (body: object, client = admin) => client.post('Patient/$member-match', body)

  t.match(await ask(call()), {
    status: 200,
    body: {
      parameter: [
        { name: 'MemberIdentifier', valueIdentifier: { system: 'urn:mpi', value: '1' } },
        { name: 'MemberId', valueReference: { reference: `Patient/${martaId}` } },
      ],
    },
  })
  const other = { identifier: [{ system: 'urn:plan', value: 'C2' }], subscriberId: 'S2' }
  t.equal((await ask(call({ coverage: other }))).status, 422)
  t.equal(
    (await ask(call({ patient: { name: [], birthDate: '1990-01-01', identifier: [] } }))).status,
    422,
  )
  t.equal((await ask(call({ consent: { status: 'rejected' } }))).status, 422)
  t.equal(
    (await ask(call({ consent: { provision: { period: { end: '2020-01-01' } } } }))).status,
    422,
  )
  t.equal((await ask(aParameters({ name: 'MemberPatient', resource: marta }))).status, 400)
  t.equal((await ask(call(), stranger)).status, 422, 'a member of another Project')
  t.equal((await ask(call(), nobody)).status, 403)
})
