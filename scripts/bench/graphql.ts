/**
 * GraphQL over HTTP with 8 callers: one read, counts, and patients with their encounters, observations and
 * subjects; what a process needs before its first answer; and the nested query beside the same with a
 * statement for every list and every reference, both in this process and round about.
 */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { execute, getIntrospectionQuery } from 'graphql'
import type { Principal } from '../../shared/access/principal.ts'
import { openContext } from '../../shared/graphql/context.ts'
import { prepareDocument } from '../../shared/graphql/document/document.ts'
import type { Levels } from '../../shared/graphql/levels.ts'
import type { GraphqlContext } from '../../shared/graphql/request-state.ts'
import { audienceName, schemaFor } from '../../shared/graphql/schema/schema.ts'
import { readPreferences } from '../../shared/request/negotiate.ts'
import type { Interaction } from '../../shared/request/request.ts'
import type { Services } from '../../shared/services.ts'
import type { Figure } from '../bench.ts'
import { freePort } from '../service.ts'
import { startWeb, stopChild, untilReady } from './children.ts'
import { type Load, measure, median, openWire } from './load.ts'
import { type LoadedStage, onLoadedStage } from './loaded.ts'
import type { Loaded } from './search-load.ts'

const CALLERS = 8
const RUNS = 9
const NESTED = `{ PatientList(_count: 20) { id EncounterList(_reference: patient) { id
  ObservationList(_reference: encounter) { id code { text } subject { resource { __typename } } } } } }`
const COUNTS = '{ PatientConnection { count } ObservationConnection { count } }'
const AUDIENCE = { isSuperAdmin: false, instance: undefined }

export async function graphql(seconds: number, resources: number): Promise<readonly Figure[]> {
  return onLoadedStage(resources, async (ready) => {
    const { baseUrl, token, loaded, stage, principal } = ready
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
      await compare(stage.services, principal),
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

/** As many statements at a time as the pool has connections. */
const LANES = 8

/** Asks for every list and every reference by itself, and for the same one again. */
function oneByOne(): Levels {
  const waiting: (() => void)[] = []
  let free = LANES
  return {
    async ask(_key, item, run) {
      if (free === 0) await new Promise<void>((resolve) => waiting.push(resolve))
      else free--
      try {
        const [answer] = await run([item])
        if (answer === undefined) throw new Error('Nothing was answered')
        return answer()
      } finally {
        const next = waiting.shift()
        if (next === undefined) free++
        else next()
      }
    },
    pace: () => undefined,
    spend: () => undefined,
    rest: () => Promise.resolve(),
    turns: 0,
  }
}

async function compare(services: Services, principal: Principal): Promise<Figure> {
  const request = {
    method: 'POST',
    path: '$graphql',
    query: new URLSearchParams(),
    headers: {},
    body: undefined,
    requestId: 'bench',
    traceId: 'bench',
  }
  const interaction: Interaction = {
    services,
    principal,
    request,
    preferences: readPreferences(request),
  }
  const batched = () => openContext(interaction, false)
  const naive = () => ({
    ...openContext(interaction, false),
    levels: oneByOne(),
    loads: forgetful<GraphqlContext['loads']>(),
    required: forgetful<GraphqlContext['required']>(),
    found: forgetful<GraphqlContext['found']>(),
  })
  await run(batched())
  await run(naive())
  const times: { ours: number; limit: number }[] = []
  for (let i = 0; i < RUNS; i++) {
    times.push({ ours: await timed(() => run(batched())), limit: await timed(() => run(naive())) })
  }
  const ours = median(times.map((time) => time.ours))
  const limit = median(times.map((time) => time.limit))
  return {
    what: 'the same, a statement a level',
    ours: `p50 ${ours.toFixed(1)} ms`,
    limit: `p50 ${limit.toFixed(1)} ms one by one`,
    ratio: median(times.map((time) => time.limit / time.ours)).toFixed(1),
    required: '>= 10',
  }
}

function forgetful<T extends Map<unknown, unknown>>(): T {
  // A map of whatever is asked of it, for it never holds anything.
  return Object.assign(new Map(), { get: () => undefined }) as unknown as T
}

async function run(contextValue: GraphqlContext): Promise<void> {
  const schema = schemaFor(AUDIENCE)
  const { document } = await prepareDocument(schema, audienceName(AUDIENCE), NESTED)
  if (document === undefined) throw new Error('The nested query is not valid')
  const { errors } = await execute({ schema, document, contextValue })
  if (errors !== undefined) throw errors[0]
}

/** What a new process takes for its first query, and for the whole schema. */
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

/** Of this process, which has been asked the nested query, with all fields of all types it may reach. */
async function memory(): Promise<Figure> {
  setFlagsFromString('--expose-gc')
  const gc: () => void = runInNewContext('gc')
  const used = () => {
    gc()
    return process.memoryUsage().heapUsed / 1_048_576
  }
  const before = used()
  const schema = schemaFor({ ...AUDIENCE, isSuperAdmin: true })
  await prepareDocument(schema, 'super', NESTED)
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
