/**
 * GraphQL over HTTP with 8 callers: one read, counts, and patients with their encounters, observations and
 * subjects; and what a process needs before its first answer.
 */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { getIntrospectionQuery } from 'graphql'
import { prepareDocument } from '../../shared/graphql/document/document.ts'
import { scan } from '../../shared/graphql/document/literals.ts'
import { schemaFor } from '../../shared/graphql/schema/schema.ts'
import type { Figure } from '../bench.ts'
import { freePort } from '../service.ts'
import { startWeb, stopChild, untilReady } from './children.ts'
import { type Load, measure, openWire } from './load.ts'
import { type LoadedStage, onLoadedStage } from './loaded.ts'
import type { Loaded } from './search-load.ts'

const CALLERS = 8
const NESTED = `{ PatientList(_count: 20) { id EncounterList(_reference: patient) { id
  ObservationList(_reference: encounter) { id code { text } subject { resource { __typename } } } } } }`
const COUNTS = '{ PatientConnection { count } ObservationConnection { count } }'
const AUDIENCE = { isSuperAdmin: false, instance: undefined }

export async function graphql(seconds: number, resources: number): Promise<readonly Figure[]> {
  return onLoadedStage(resources, async (ready) => {
    const { baseUrl, token, loaded } = ready
    const wire = await openWire(baseUrl, CALLERS, token, 'application/json')
    const load = (query: () => string) =>
      measure(CALLERS, seconds, async (caller) => {
        const body = JSON.stringify({ query: query() })
        return (await wire.send(caller, 'POST', '/fhir/R4/$graphql', body)).status === 200
      })
    const read = await load(() => readOne(loaded))
    const counted = await load(() => COUNTS)
    const nested = await load(() => NESTED)
    wire.close()
    return [
      figure('one Patient by id', read),
      figure('counts of two types', counted),
      figure('20 patients, four levels', nested),
      ...(await first(ready)),
      await memory(),
    ]
  })
}

function readOne({ samples }: Loaded): string {
  const patients = samples.get('Patient') ?? []
  const { id } = patients[Math.floor(Math.random() * patients.length)] ?? {}
  return `{ Patient(id: "${id}") { id name { family given } birthDate } }`
}

/** Measures a new process at its first query, and with the whole schema. */
async function first({ stage, token, loaded }: LoadedStage): Promise<Figure[]> {
  const port = await freePort()
  const baseUrl = `http://127.0.0.1:${port}/`
  // Its tokens are for the address of the other one.
  const web = startWeb({ ...stage.env, PORT: String(port) })
  try {
    await untilReady(baseUrl, false)
    const ask = (query: string) =>
      timed(async () => {
        const response = await fetch(`${baseUrl}fhir/R4/$graphql`, {
          method: 'POST',
          headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
          body: JSON.stringify({ query }),
        })
        if (!response.ok) throw new Error(`The query was answered ${response.status}`)
        await response.arrayBuffer()
      })
    const query = await ask(readOne(loaded))
    const schema = await ask(getIntrospectionQuery())
    const again = await ask(getIntrospectionQuery())
    return [
      { ...NOTHING, what: 'the first query', ours: milliseconds(query), required: '<= 300 ms' },
      {
        ...NOTHING,
        what: 'introspection',
        ours: milliseconds(schema),
        limit: `${milliseconds(again)} the second time`,
        required: '<= 2000 ms',
      },
    ]
  } finally {
    await stopChild(web)
  }
}

const NOTHING = { what: '', ours: '', limit: '', ratio: '', required: '' }

/** The memory of this process after the nested query, with all fields of all types that it may reach. */
async function memory(): Promise<Figure> {
  setFlagsFromString('--expose-gc')
  const gc: () => void = runInNewContext('gc')
  const used = () => {
    gc()
    return process.memoryUsage().heapUsed / 1_048_576
  }
  const before = used()
  const schema = schemaFor({ ...AUDIENCE, isSuperAdmin: true })
  await prepareDocument(schema, 'super', NESTED, scan(NESTED))
  const lazy = used() - before
  for (const name of Object.keys(schema.getTypeMap())) {
    const type = schema.getType(name)
    if (type !== undefined && 'getFields' in type) type.getFields()
  }
  const whole = used() - before
  return {
    what: 'memory of one more schema',
    ours: `${lazy.toFixed(1)} MiB`,
    limit: `${whole.toFixed(1)} MiB with the fields of all resources`,
    ratio: '',
    required: '<= 60 MiB',
  }
}

async function timed(work: () => Promise<void>): Promise<number> {
  const began = performance.now()
  await work()
  return performance.now() - began
}

function milliseconds(value: number): string {
  return `${Math.round(value)} ms`
}

function figure(what: string, { failed, p50Ms, perSecond }: Load): Figure {
  if (failed > 0) throw new Error(`${what}: ${failed} queries failed`)
  return { ...NOTHING, what, ours: `p50 ${p50Ms.toFixed(1)} ms, ${perSecond.toFixed(1)}/s` }
}
