import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { ended } from '../../fixtures/exports/exports.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const { admin: stranger } = await botica.createTenant()
const { client: other } = await botica.createMember()
const DONE_MS = 120_000

async function begin(): Promise<{
  readonly url: string
  readonly id: string
  readonly input: string
}> {
  const lines = ['a', 'b'].map((id) => ({ ...aPatient(), id: `job-${id}-${Date.now()}` }))
  const text = [...lines, { resourceType: 'Patient' }]
    .map((line) => JSON.stringify(line))
    .join('\n')
  const type = { 'Content-Type': 'application/fhir+ndjson' }
  const input = `Binary/${(await admin.post('Binary', text, type)).body.id}`
  const part = [
    { name: 'type', valueCode: 'Patient' },
    { name: 'url', valueUrl: input },
  ]
  const parameter = [{ name: 'input', part }]
  const accepted = await admin.post('$import', { resourceType: 'Parameters', parameter })
  const url = accepted.headers.get('content-location') ?? ''
  return { url, id: url.slice(url.lastIndexOf('/') + 1), input }
}

t.test('cancels an import through its AsyncJob', async (t) => {
  const { url, id, input } = await begin()
  const { body: manifest } = await ended(admin, url)

  t.match((await admin.get(`AsyncJob/${id}`)).body, {
    resourceType: 'AsyncJob',
    status: 'completed',
    request: `${botica.baseUrl}fhir/R4/$import`,
    output: {
      parameter: [
        {
          name: 'output',
          part: [
            { name: 'type', valueCode: 'Patient' },
            { name: 'inputUrl', valueUri: input },
            { name: 'count', valueInteger: 2 },
            { name: 'created', valueInteger: 2 },
          ],
        },
        { name: 'error', part: [{}, { name: 'url', valueUri: manifest.error[0]?.url }] },
      ],
    },
  })
  for (const caller of [stranger, other]) {
    t.equal((await caller.get(`AsyncJob/${id}`)).status, 404)
    t.equal((await caller.post(`AsyncJob/${id}/$cancel`, {})).status, 404)
  }
  t.equal((await admin.post(`AsyncJob/${id}/$cancel`, {})).status, 200)
  t.equal((await admin.get(url)).status, 404)
  t.equal((await admin.get(`AsyncJob/${id}`)).status, 404)
})

t.test('audits the start, result, error downloads and cancellation of an import', async (t) => {
  const { url, id } = await begin()
  const { body: manifest } = await ended(admin, url)
  await admin.get(manifest.error[0]?.url ?? '')
  await admin.del(url)

  const steps = new Map<string | undefined, string>()
  await until(async () => {
    const { body } = await admin.get<{ entry?: { resource: Resource }[] }>(
      `AuditEvent?entity=AsyncJob/${id}`,
    )
    for (const { resource } of body.entry ?? []) {
      const [, step] = resource.subtype as { code: string }[]
      steps.set(step?.code, JSON.stringify(resource))
    }
    return steps.size === 4
  }, DONE_MS)
  t.same([...steps.keys()].sort(), ['cancel', 'completed', 'download', 'kick-off'])
  t.match(steps.get('kick-off'), '"mode","valueString":"upsert"')
  t.match(steps.get('completed'), '"created","valueString":"2"')
  t.match(steps.get('completed'), '"failed","valueString":"1"')
})

t.test('returns 404 for an unknown import', async (t) => {
  for (const id of ['-'.repeat(36), '0'.repeat(36), 'x']) {
    t.equal((await admin.get(`bulkdata/import/${id}`)).status, 404)
  }
})
