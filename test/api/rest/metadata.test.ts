/** Imports the table of operations, to find each in the CapabilityStatement. */
import t from 'tap'
import { operations } from '../../../shared/api/operations.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'

const { anonymous } = await openBotica(t)

interface Statement extends Resource {
  readonly rest: readonly [
    {
      readonly interaction: readonly { code: string }[]
      readonly resource: readonly {
        readonly type: string
        readonly interaction: readonly { code: string }[]
        readonly searchParam?: readonly { name: string; type: string }[]
        readonly searchInclude?: readonly string[]
        readonly searchRevInclude?: readonly string[]
        readonly operation?: readonly { name: string }[]
      }[]
      readonly operation?: readonly { name: string }[]
    },
  ]
}

const answer = await anonymous.get<Statement>('metadata')

t.test('returns the capability statement without a token', async (t) => {
  t.equal(answer.status, 200)
  t.match(answer.headers.get('content-type'), 'application/fhir+json')
  t.match(answer.body, {
    resourceType: 'CapabilityStatement',
    kind: 'instance',
    fhirVersion: '4.0.1',
    rest: [{ mode: 'server', security: { cors: true } }],
  })
})

t.test('lists every stored type with its interactions', async (t) => {
  const { resource } = answer.body.rest[0]
  const patient = resource.find(({ type }) => type === 'Patient')
  t.ok(resource.length > 150)
  t.ok(resource.some(({ type }) => type === 'Project'))
  t.ok(patient?.interaction.some(({ code }) => code === 'search-type'))
  t.ok(patient?.searchParam?.some(({ name, type }) => name === 'identifier' && type === 'token'))
})

t.test('lists includes and compartments', async (t) => {
  const [rest] = answer.body.rest
  const patient = rest.resource.find(({ type }) => type === 'Patient')
  t.ok(patient?.searchInclude?.includes('Patient:organization'))
  t.ok(patient?.searchRevInclude?.includes('Observation:patient'))
  t.notOk(patient?.searchRevInclude?.includes('Patient:organization'))
  const binary = rest.resource.find(({ type }) => type === 'Binary')
  t.equal(binary?.searchInclude, undefined)
  t.ok(rest.interaction.some(({ code }) => code === 'search-system'))
  t.match(rest, {
    compartment: ['http://hl7.org/fhir/CompartmentDefinition/patient'],
  })
})

t.test('lists every operation at its level', async (t) => {
  const [{ resource, operation = [] }] = answer.body.rest
  const listed = [...operation, ...resource.flatMap((item) => item.operation ?? [])]
  for (const { name } of operations)
    t.ok(
      listed.some((item) => item.name === name),
      name,
    )
})

t.test('returns 304 for a matching ETag', async (t) => {
  const etag = answer.headers.get('etag') ?? ''
  const again = await anonymous.get('metadata', { 'If-None-Match': etag })
  t.equal(again.status, 304)
  t.equal(again.text, '')
})

t.test('returns 406 for XML', async (t) => {
  t.equal((await anonymous.get('metadata?_format=xml')).status, 406)
})

t.test('returns the supported FHIR versions without a token', async (t) => {
  const versions = await anonymous.get('$versions')
  t.equal(versions.status, 200)
  t.same(versions.body, { versions: ['4.0'], default: '4.0' })
  const asFhir = await anonymous.get('$versions', { Accept: 'application/fhir+json' })
  t.match(asFhir.headers.get('content-type'), 'application/fhir+json')
  t.same(asFhir.body, {
    resourceType: 'Parameters',
    parameter: [
      { name: 'version', valueCode: '4.0' },
      { name: 'default', valueCode: '4.0' },
    ],
  })
})
