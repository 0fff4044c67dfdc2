/** Hidden elements and resources stay hidden on every path of GraphQL. */
import t from 'tap'
import { openBotica, statementsAsked } from '../../fixtures/botica.ts'
import { ask } from '../../fixtures/graphql.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, services } = botica

const [own, other] = await Promise.all([
  admin.create(aPatient({ birthDate: '1950-01-01' })),
  admin.create(aPatient({ birthDate: '1960-01-01' })),
])
const [seen, unseen] = await Promise.all(
  [own, other].map(({ id }) => admin.create(anObservation(`Patient/${id}`))),
)
const encounter = await admin.create({
  resourceType: 'Encounter',
  status: 'finished',
  class: { code: 'AMB' },
  subject: { reference: `Patient/${own.id}` },
})

t.test('returns null for a hidden element and rejects its other uses', async (t) => {
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'Patient', hiddenFields: ['birthDate', 'name'] },
      { resourceType: 'Observation' },
    ],
  })
  const { body } = await ask(
    client,
    `{ Patient(id: "${own.id}") { birthDate _birthDate { id } name(use: "official") { family }
        identifier(fhirpath: "%resource.birthDate.exists()") { value } }
       Observation(id: "${seen?.id}") { subject { resource { ... on Patient { birthDate } } } }
       byDate: PatientList(birthdate: "1950-01-01") { id }
       byFilter: PatientList(_filter: "birthdate eq 1950-01-01") { id }
       sorted: PatientList(_sort: "birthdate") { id } }`,
  )
  t.same(body.data, {
    Patient: { birthDate: null, _birthDate: null, name: null, identifier: [] },
    Observation: { subject: { resource: { birthDate: null } } },
    byDate: null,
    byFilter: null,
    sorted: null,
  })
  t.same(body.errors?.map(({ path, extensions }) => [path?.[0], extensions?.status]).sort(), [
    ['byDate', 403],
    ['byFilter', 403],
    ['sorted', 403],
  ])
})

t.test('shows a patient’s member only the Observations of the patient on every path', async (t) => {
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'Patient' },
      { resourceType: 'Encounter' },
      { resourceType: 'Observation', criteria: `Observation?subject=Patient/${own.id}` },
    ],
  })
  const query = `{ ObservationList { id } ObservationConnection { count edges { resource { id } } }
    mine: Observation(id: "${seen?.id}") { id } other: Observation(id: "${unseen?.id}") { id }
    PatientList(_sort: "_lastUpdated") { ObservationList(_reference: subject) { id }
      ObservationConnection(_reference: subject) { count } } }`
  const { body } = await ask(client, query)
  t.same(body.data.ObservationList, [{ id: seen?.id }])
  t.same(body.data.ObservationConnection, { count: 1, edges: [{ resource: { id: seen?.id } }] })
  t.same([body.data.mine, body.data.other], [{ id: seen?.id }, null])
  const lists = body.data.PatientList.map(
    (patient: { ObservationList: readonly unknown[] }) => patient.ObservationList.length,
  )
  t.same(lists.sort(), [0, 1])
  const counts = body.data.PatientList.map(
    (patient: { ObservationConnection: { count: number } }) => patient.ObservationConnection.count,
  )
  t.same(counts.sort(), [0, 1])
  const nested = '{ PatientList { ObservationList(_reference: subject) { id } } }'
  t.equal(await statementsAsked(services, client, () => ask(client, nested)), 2)
})

t.test('neither follows nor searches by a hidden reference', async (t) => {
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'Patient' },
      { resourceType: 'Encounter', hiddenFields: ['subject'] },
    ],
  })
  const { body } = await ask(
    client,
    `{ Encounter(id: "${encounter.id}") { id subject { resource { __typename } } }
       Patient(id: "${own.id}") { EncounterList(_reference: subject) { id } } }`,
  )
  t.same(body.data.Encounter, { id: encounter.id, subject: null })
  t.same(body.data.Patient, { EncounterList: null })
  t.match(body.errors, [{ path: ['Patient', 'EncounterList'], extensions: { status: 403 } }])
})

t.test('keeps read-only elements in mutations and rejects changes of hidden rows', async (t) => {
  const { client } = await memberUnder(botica, {
    entries: [
      {
        resourceType: 'Patient',
        criteria: `Patient?_id=${own.id}`,
        readonlyFields: ['birthDate'],
      },
    ],
  })
  const patched = await ask(
    client,
    `mutation ($own: ID!, $other: ID!, $patch: [PatchOperationInput!]!) {
      own: PatientPatch(id: $own, patch: $patch) { birthDate gender }
      other: PatientPatch(id: $other, patch: $patch) { id }
      gone: PatientDelete(id: $other) { id } }`,
    {
      own: own.id,
      other: other.id,
      patch: [
        { op: 'replace', path: '/birthDate', value: '2001-01-01' },
        { op: 'replace', path: '/gender', value: 'other' },
      ],
    },
  )
  t.same(patched.body.data, {
    own: { birthDate: '1950-01-01', gender: 'other' },
    other: null,
    gone: null,
  })
  t.same(
    patched.body.errors?.map(({ path }) => path?.[0]),
    ['other', 'gone'],
  )
  t.equal((await admin.get(`Patient/${other.id}`)).status, 200)
})
