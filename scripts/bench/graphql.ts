/** GraphQL over HTTP with 8 callers, and startup cost of process and schema. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { getIntrospectionQuery } from 'graphql'
import { prepareDocument } from '../../shared/graphql/document/document.ts'
import { scan } from '../../shared/graphql/document/literals.ts'
import { schemaFor } from '../../shared/graphql/schema/schema.ts'
import { freePort } from '../service.ts'
import { type Figure, openWire } from './load.ts'
import { load, pickSample } from './samples.ts'
import type { Stage } from './stage.ts'

const CALLERS = 8
const NESTED = `{ PatientList(_count: 20) { id EncounterList(_reference: patient) { id
  ObservationList(_reference: encounter) { id code { text } subject { resource { __typename } } } } } }`
const COUNTS = '{ PatientConnection { count } ObservationConnection { count } }'

export async function graphql(
  stage: Stage,
  seconds: number,
  resources: number,
): Promise<readonly Figure[]> {
  const { client, token, principal } = await stage.openProject()
  await load(stage.services, principal, resources)
  const patients = await client.searchResources('Patient', '_count=1000')
  const readOne = () =>
    `{ Patient(id: "${pickSample(patients).id}") { id name { family given } birthDate } }`
  const wire = await openWire(stage.baseUrl, CALLERS, token, 'application/json')
  const rate = async (what: string, query: () => string): Promise<Figure> => {
    const { p50Ms, perSecond } = await wire.load(seconds, () => [
      'POST',
      '/fhir/R4/$graphql',
      JSON.stringify({ query: query() }),
    ])
    return { what, ours: `p50 ${p50Ms.toFixed(1)} ms, ${perSecond.toFixed(1)}/s` }
  }
  const rates = [
    await rate('one Patient by id', readOne),
    await rate('counts of two types', () => COUNTS),
    await rate('20 patients, four levels', () => NESTED),
  ]
  wire.close()
  return [...rates, ...(await first(stage, token, readOne())), await memory()]
}

/** Measures a new process at its first query, and with the whole schema. */
async function first(stage: Stage, token: string, query: string): Promise<Figure[]> {
  const port = await freePort()
  // Tokens are issued for the other process's address.
  await stage.start('web', { PORT: String(port) })
  const ask = async (what: string, text: string, required: string): Promise<Figure> => {
    const began = performance.now()
    const response = await fetch(`http://127.0.0.1:${port}/fhir/R4/$graphql`, {
      method: 'POST',
      headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
      body: JSON.stringify({ query: text }),
    })
    if (!response.ok) throw new Error(`The query was answered ${response.status}`)
    await response.arrayBuffer()
    return { what, ours: `${Math.round(performance.now() - began)} ms`, required }
  }
  return [
    await ask('the first query', query, '<= 300 ms'),
    await ask('introspection', getIntrospectionQuery(), '<= 2000 ms'),
  ]
}

/** Returns this process's memory after the nested query, with all reachable types and fields. */
async function memory(): Promise<Figure> {
  setFlagsFromString('--expose-gc')
  const gc: () => void = runInNewContext('gc')
  const used = () => {
    gc()
    return process.memoryUsage().heapUsed / 1_048_576
  }
  const before = used()
  const schema = schemaFor({ isSuperAdmin: true, instance: undefined })
  await prepareDocument(schema, 'super', NESTED, scan(NESTED))
  const lazy = used() - before
  for (const type of Object.values(schema.getTypeMap())) {
    if ('getFields' in type) type.getFields()
  }
  const limit = `${(used() - before).toFixed(1)} MiB with the fields of all resources`
  const ours = `${lazy.toFixed(1)} MiB`
  return { what: 'memory of one more schema', ours, limit, required: '<= 60 MiB' }
}
