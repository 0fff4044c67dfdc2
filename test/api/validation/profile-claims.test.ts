/** Profiles claimed by nested resources. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { OperationOutcome, Resource } from '../../fixtures/fhir.ts'
import {
  PATIENT_PROFILE,
  patientProfile,
  raceExtension,
  usLikePatient,
} from '../../fixtures/profiles.ts'

const botica = await openBotica(t)
const { admin } = botica
for (const profile of [raceExtension(), patientProfile()]) await admin.create(profile)

const OWN = 'http://example.org/fhir/StructureDefinition/of-contained'
await admin.create({
  ...patientProfile({ url: OWN, version: '1.0.0' }),
  differential: {
    element: [
      {
        id: 'Patient',
        path: 'Patient',
        constraint: [
          {
            key: 'root-1',
            severity: 'error',
            human: 'It is alone in an observation that is final',
            expression: "%resource.id = 'p' and %rootResource.status = 'final'",
          },
        ],
      },
    ],
  },
})

function observation(subject: Resource, status = 'final'): Resource {
  const code = { text: 'x' }
  return {
    resourceType: 'Observation',
    status,
    code,
    contained: [subject],
    subject: { reference: '#p' },
  }
}

function collection(...resources: readonly Resource[]): Resource {
  return {
    resourceType: 'Bundle',
    type: 'collection',
    entry: resources.map((resource) => ({ resource })),
  }
}

const { id: _, ...good } = usLikePatient()
const bad = usLikePatient({ gender: undefined })

/** Returns the errors of a rejected create as `path: text`. */
async function faults(resource: Resource): Promise<string[]> {
  const { status, body } = await admin.post<OperationOutcome>(resource.resourceType, resource)
  if (status === 201) return []
  return body.issue.map(({ details, expression }) => `${expression}: ${details.text}`)
}

const missing = (place: string) => [`${place}.gender: Missing required property`]

t.test('validates a contained resource against its claimed profile', async (t) => {
  t.same(await faults(observation({ ...good, id: 'p' })), [])
  t.same(await faults(observation({ ...bad, id: 'p' })), missing('Observation.contained[0]'))
})

t.test('evaluates constraints of a contained resource with its container', async (t) => {
  const claiming = { resourceType: 'Patient', id: 'p', meta: { profile: [OWN] } }
  t.same(await faults(observation(claiming)), [])
  t.match(await faults(observation(claiming, 'preliminary')), [
    /^Observation\.contained\[0\]: Constraint root-1 not met/,
  ])
})

t.test('evaluates constraints of a container on its contained resources', async (t) => {
  const url = 'http://example.org/fhir/StructureDefinition/containing'
  const constraint = (key: string, context: string, resource: string) => ({
    key,
    severity: 'error',
    human: 'The variables are right',
    expression: `%context.type().name = '${context}' and %resource.type().name = '${resource}' and %rootResource.type().name = 'Patient'`,
  })
  const element = (path: string, ...rest: Parameters<typeof constraint>) => ({
    id: path,
    path,
    constraint: [constraint(...rest)],
  })
  await admin.create({
    ...patientProfile({ url, version: '1.0.0' }),
    differential: {
      element: [
        {
          ...element('Patient.contained', 'in-1', 'Practitioner', 'Patient'),
          type: [{ code: 'Practitioner' }],
        },
        element('Patient.contained.name', 'in-2', 'HumanName', 'Practitioner'),
        element('Patient.generalPractitioner', 'in-3', 'Reference', 'Patient'),
      ],
    },
  })
  const doctor = { resourceType: 'Practitioner', id: 'd', name: [{ text: 'Dr. X' }] }
  const generalPractitioner = [{ reference: '#d' }]
  const meta = { profile: [url] }
  const patient = { resourceType: 'Patient', meta, contained: [doctor], generalPractitioner }
  t.same(await faults(patient), [])
})

t.test('validates each resource of a stored Bundle', async (t) => {
  t.same(await faults(collection(good, good)), [])
  t.same(await faults(collection(good, bad)), missing('Bundle.entry[1].resource'))
  const inside = observation({ ...bad, id: 'p' })
  const place = 'Bundle.entry[1].resource.contained[0]'
  t.same(await faults(collection(good, inside)), missing(place))
})

t.test('validates each resource in Parameters at any depth', async (t) => {
  const parameter = [{ name: 'a', part: [{ name: 'b', resource: bad }] }]
  const place = 'Parameters.parameter[0].part[0].resource'
  t.same(await faults({ resourceType: 'Parameters', parameter }), missing(place))
})

t.test('reports a profile of another type at the claim', async (t) => {
  const wrong = { resourceType: 'Group', type: 'person', actual: true }
  const place = 'Bundle.entry[0].resource.meta.profile'
  t.same(await faults(collection({ ...wrong, meta: { profile: [PATIENT_PROFILE] } })), [
    `${place}: Profile ${PATIENT_PROFILE} is for Patient`,
  ])
})

t.test('warns of each unknown claim in $validate', async (t) => {
  const unknown = { ...good, meta: { profile: ['http://example.org/none'] } }
  const { status, body } = await admin.post<OperationOutcome>(
    'Bundle/$validate',
    collection(good, unknown),
  )
  t.equal(status, 200)
  t.match(
    body.issue.filter(({ severity }) => severity === 'warning'),
    [
      {
        details: { text: 'Unknown profile "http://example.org/none"' },
        expression: ['Bundle.entry[1].resource.meta.profile'],
      },
    ],
  )
})

t.test('limits the claims of one body', async (t) => {
  const claiming = (count: number, from = 0) => ({
    ...good,
    meta: { profile: Array.from({ length: count }, (_, i) => `http://example.org/p${from + i}`) },
  })
  t.same(await faults(collection(good, claiming(21))), [
    'Bundle.entry[1].resource.meta.profile: A resource may claim 20 profiles',
  ])
  const many = Array.from({ length: 6 }, (_, i) => claiming(20, 20 * i))
  t.match(await faults(collection(...many)), [/The resources in one body may claim 100 profiles/])
})
