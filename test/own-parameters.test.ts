import t from 'tap'
import type { Resource } from '../shared/fhir/resource.ts'
import { openBotica, until } from './fixtures/botica.ts'
import type { Client } from './fixtures/client.ts'
import type { Raw } from './fixtures/oracle-values.ts'
import { aPatient } from './fixtures/resources.ts'

const botica = await openBotica(t, { worker: true })
const { admin, services } = botica
const READY_MS = 60_000
const EYES = 'http://example.org/eyes'

function aParameter(changes: object = {}): Resource {
  return {
    resourceType: 'SearchParameter',
    url: `http://example.org/SearchParameter/${crypto.randomUUID()}`,
    name: 'EyeColour',
    description: 'Colour of the eyes',
    status: 'active',
    code: 'eyes',
    base: ['Patient'],
    type: 'token',
    expression: `Patient.extension('${EYES}').value`,
    ...changes,
  }
}

function withEyes(colour: string): Resource {
  const coding = [{ system: 'urn:colour', code: colour }]
  return aPatient({ extension: [{ url: EYES, valueCodeableConcept: { coding } }] })
}

async function idsOf(client: Client, query: string): Promise<string[]> {
  const { status, body } = await client.get<Raw>(query)
  if (status !== 200) throw new Error(`${query}: ${status} ${JSON.stringify(body)}`)
  return (body.entry ?? []).map((entry: Raw) => entry.resource.id).sort()
}

function ready(query: string, client = admin): Promise<void> {
  return until(async () => (await client.get(query)).status === 200, READY_MS)
}

t.test('a parameter of the Project finds what was stored before and after it', async (t) => {
  const before = await admin.create(withEyes('blue'))
  const other = await admin.create(withEyes('green'))
  const parameter = await admin.create(aParameter())
  await until(async () => {
    const { body } = await admin.get<Raw>('Patient?eyes=blue')
    return /not ready/.test(JSON.stringify(body))
  }, READY_MS)
  const after = await admin.create(withEyes('blue'))
  const { body: explained } = await admin.get<Raw>('Patient?eyes=blue&_explain=true')
  t.match(explained.entry[0].resource.issue[1], {
    code: 'incomplete',
    details: { text: /^Search parameter eyes is not ready: \d+ of \d+ resources are indexed$/ },
  })
  await ready('Patient?eyes=blue')

  t.same(await idsOf(admin, 'Patient?eyes=urn:colour|blue'), [before.id, after.id].sort())
  t.same(await idsOf(admin, 'Patient?eyes:not=blue'), [other.id])
  t.same(await idsOf(admin, 'Patient?_sort=-eyes&eyes=green,blue&_count=1'), [other.id])
  t.same(await idsOf(admin, `Patient?_filter=${encodeURIComponent('eyes eq green')}`), [other.id])
  const observation = await admin.create({
    resourceType: 'Observation',
    status: 'final',
    code: { text: 'x' },
    subject: { reference: `Patient/${other.id}` },
  })
  t.same(await idsOf(admin, 'Observation?patient.eyes=green'), [observation.id])

  const stranger = await botica.createTenant()
  t.match(await stranger.admin.get('Patient?eyes=blue'), {
    status: 400,
    body: { issue: [{ details: { text: 'Unknown search parameter: eyes' } }] },
  })
  await admin.del(`SearchParameter/${parameter.id}`)
  await until(async () => (await admin.get('Patient?eyes=blue')).status === 400, READY_MS)
  const { number } = (await services.principals.project(botica.project.id)) ?? {}
  await until(async () => {
    const rows = await services.database.query({
      text: `select 1 from job where project = $1 union all
        select 1 from indexed_parameter where project = $1`,
      values: [number],
    })
    return rows.length === 0
  }, READY_MS)
})
