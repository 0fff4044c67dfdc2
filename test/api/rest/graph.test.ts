import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEncounter, anObservation, anOrganization, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin } = botica

interface Collection extends Resource {
  readonly entry: readonly { readonly resource: Resource }[]
}

const organization = await admin.create(anOrganization())
const patient = await admin.create(
  aPatient({ managingOrganization: { reference: `Organization/${organization.id}` } }),
)
const subject = `Patient/${patient.id}`
const encounter = await admin.create(anEncounter(subject))
const observation = await admin.create(
  anObservation(subject, { encounter: { reference: `Encounter/${encounter.id}` } }),
)
await admin.create(anObservation('Patient/other'))

const define = (name: string, link: readonly object[], start = 'Patient') =>
  admin.post('GraphDefinition', {
    resourceType: 'GraphDefinition',
    name,
    status: 'active',
    start,
    ...(link.length === 0 ? {} : { link }),
  })

t.test('returns resources linked by reference and by search once each', async (t) => {
  await define('record', [
    { path: 'Patient.managingOrganization', target: [{ type: 'Organization' }] },
    {
      target: [
        {
          type: 'Observation',
          params: 'patient={ref}',
          link: [
            { path: 'Observation.encounter', target: [{ type: 'Encounter' }] },
            { path: 'Observation.subject', target: [{ type: 'Patient' }] },
          ],
        },
      ],
    },
  ])
  const { status, body } = await admin.get<Collection>(`${subject}/$graph?graph=record`)
  t.equal(status, 200)
  t.equal(body.type, 'collection')
  t.same(
    body.entry.map(({ resource }) => resource.id),
    [patient.id, organization.id, observation.id, encounter.id],
  )
})

t.test('rejects graphs that cannot be followed', async (t) => {
  const deep = (levels: number): object => ({
    target: [
      {
        type: 'Patient',
        params: '_id={ref}',
        ...(levels === 0 ? {} : { link: [deep(levels - 1)] }),
      },
    ],
  })
  const wrong: [name: string, link: object][] = [
    ['path', { path: 'Patient.nothing', target: [{ type: 'Organization' }] }],
    ['params', { target: [{ type: 'Observation', params: 'patient=1' }] }],
    ['search', { target: [{ type: 'Observation', params: 'nothing={ref}' }] }],
  ]
  for (const [name, link] of wrong) {
    t.equal((await define(name, [link])).status, 201, name)
    t.equal((await admin.get(`${subject}/$graph?graph=${name}`)).status, 400, name)
  }
  await define('circle', [deep(6)])
  t.equal((await admin.get(`${subject}/$graph?graph=circle`)).status, 200, 'it ends by itself')
  await define('start', [], 'Encounter')
  t.equal((await admin.get(`${subject}/$graph?graph=start`)).status, 400)
  t.equal((await admin.get(`${subject}/$graph`)).status, 400)
  t.equal((await admin.get(`${subject}/$graph?graph=none`)).status, 404)
  const other = await botica.createTenant()
  t.equal((await other.admin.get(`${subject}/$graph?graph=record`)).status, 404)
})
