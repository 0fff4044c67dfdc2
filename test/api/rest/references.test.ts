import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { clientUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, baseUrl } = botica
const base = `${baseUrl}fhir/R4/`
const { id } = await admin.create(aPatient())
const patient = `Patient/${id}`

interface Found extends Resource {
  readonly entry?: readonly { readonly resource: Resource }[]
}

async function idsFound(query: string, caller = admin): Promise<(string | undefined)[]> {
  const { body } = await caller.get<Found>(`Observation?${query}`)
  return (body.entry ?? []).map(({ resource }) => resource.id)
}

t.test('stores absolute references under the base URL as relative', async (t) => {
  const made = await admin.create(
    anObservation(base + patient, {
      performer: [{ reference: `${base}Practitioner/1/_history/2`, display: base + patient }],
      hasMember: [{ reference: `${base}Observation/2` }],
    }),
  )
  t.match(made, {
    subject: { reference: patient },
    performer: [{ reference: 'Practitioner/1/_history/2', display: base + patient }],
    hasMember: [{ reference: 'Observation/2' }],
  })
  t.match((await admin.get(`Observation/${made.id}`)).body.subject, { reference: patient })
  t.same(await idsFound(`_id=${made.id}&subject=${patient}`), [made.id])
  t.same(await idsFound(`_id=${made.id}&subject=${base}${patient}`), [made.id])
  t.same(await idsFound(`_id=${made.id}&performer=Practitioner/1`), [made.id])
  t.same(await idsFound(`_id=${made.id}&performer=${base}Practitioner/1`), [made.id])
})

t.test('shortens references in updates and patches, without a new version', async (t) => {
  const made = await admin.create(anObservation(patient))
  const path = `Observation/${made.id}`
  const same = await admin.put(path, { ...made, subject: { reference: base + patient } })
  t.match(same.body, { subject: { reference: patient }, meta: { versionId: '1' } })
  const patched = await admin.patch(path, [
    { op: 'add', path: '/performer', value: [{ reference: `${base}Practitioner/9` }] },
  ])
  t.match(patched.body.performer, [{ reference: 'Practitioner/9' }])
  const query = `identifier=${randomUUID()}`
  const conditional = await admin.put(`Observation?${query}`, anObservation(base + patient))
  t.match(conditional.body.subject, { reference: patient })
})

t.test('shortens references in bundle entries', async (t) => {
  for (const type of ['batch', 'transaction']) {
    const answer = await admin.post<Found>('', {
      resourceType: 'Bundle',
      type,
      entry: [
        {
          resource: anObservation(base + patient),
          request: { method: 'POST', url: 'Observation' },
        },
        {
          fullUrl: `${base}Observation/new`,
          resource: anObservation(patient, { hasMember: [{ reference: 'Observation/new' }] }),
          request: { method: 'POST', url: 'Observation' },
        },
      ],
    })
    t.equal(answer.status, 200)
    const [first, second] = answer.body.entry ?? []
    t.match(first?.resource.subject, { reference: patient }, type)
    const self = `Observation/${second?.resource.id}`
    t.match(second?.resource.hasMember, [{ reference: self }], type)
  }
})

t.test('finds resources by references to UUIDs in upper case', async (t) => {
  const upper = `Patient/${id?.toUpperCase()}`
  const member = await clientUnder(botica, {
    resourceType: 'Observation',
    criteria: `Observation?subject=${upper}`,
  })
  const sent = [upper, base + upper, `${upper}/_history/1`]
  for (const reference of sent) {
    const made = await admin.create(anObservation(reference))
    const version = reference.endsWith('/1') ? '/_history/1' : ''
    t.match(made.subject, { reference: patient + version })
    const queries = [
      `subject=${patient}`,
      `subject=${upper}`,
      `subject=${id?.toUpperCase()}`,
      `subject:Patient._id=${id?.toUpperCase()}`,
      'subject:Patient.family=Chalmers',
      `_compartment=${upper}`,
    ]
    for (const query of queries) {
      t.same(await idsFound(`_id=${made.id}&${query}`), [made.id], `${query} of ${reference}`)
    }
    t.same(await idsFound(`_id=${made.id}`, member), [made.id], 'under a policy')
    const { body } = await admin.get<Found>(`Patient/${id}/$everything?_count=1000`)
    t.ok(
      body.entry?.some(({ resource }) => resource.id === made.id),
      '$everything',
    )
  }
})

const KEPT = [
  'https://elsewhere.example.org/fhir/R4/Patient/1',
  `${base}Patient`,
  `${base}Patient/1/Observation`,
  `${base}Patient?identifier=1`,
  `${base.slice(0, -1)}x/Patient/1`,
  `${base}../../Patient/1`,
  'urn:uuid:0c0e6a3e-7a4c-4c5c-9c55-0d5f6bb0c001',
  '#contained',
]

t.test('keeps other references', async (t) => {
  for (const reference of KEPT) {
    const contained = [{ resourceType: 'Patient', id: 'contained' }]
    const made = await admin.create(anObservation(reference, { contained }))
    t.match(made.subject, { reference }, reference)
  }
  const elsewhere = KEPT[0] ?? ''
  t.equal((await idsFound(`subject=${elsewhere}`)).length, 1)
})
