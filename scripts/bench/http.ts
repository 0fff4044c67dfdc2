/**
 * REST over HTTP: the mix of the public FHIR server benchmark (create, read, update, delete over nine
 * linked types), and single reads and creates beside the bare SQL statement behind an empty Koa route.
 */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import pg from 'pg'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Figure } from '../bench.ts'
import { freePort } from '../service.ts'
import { startWeb, stopChild, untilReady } from './children.ts'
import { descendantsCpuUs } from './cpu.ts'
import { measure, median, openWire, type Wire } from './load.ts'
import { openProject } from './project.ts'
import { syntheaResources } from './samples.ts'
import { openStage, type Stage } from './stage.ts'

const ROUNDS = 5
const CALLERS = 64
/** V8 needs some ten thousand requests before the code of a process is what it stays. */
const WARM_UP_S = 5
const RAW_ROWS = 2000
const FHIR = '/fhir/R4/'
/** In the order in which they can refer to each other. */
const TYPES = [
  'Organization',
  'Location',
  'Practitioner',
  'Patient',
  'Encounter',
  'Observation',
  'MedicationRequest',
  'Claim',
  'ExplanationOfBenefit',
] as const

export async function http(seconds: number): Promise<readonly Figure[]> {
  const templates = await readTemplates()
  const port = await freePort()
  const baseUrl = `http://127.0.0.1:${port}/`
  const stage = await openStage({ PORT: String(port), BASE_URL: baseUrl })
  const pool = new pg.Pool({ connectionString: stage.config.databaseUrl, max: 4 })
  const web = startWeb(stage.env)
  try {
    const raw = await openRaw(stage, pool, templates.Observation)
    await untilReady(baseUrl, false)
    const { token } = await openProject(stage, baseUrl)
    const wire = await openWire(baseUrl, CALLERS, token, 'application/fhir+json')
    const rawWire = await openWire(raw.url, CALLERS, token, 'application/json')
    const figures = [
      ...(await single(wire, rawWire, raw.ids, templates.Observation, seconds)),
      ...(await mix(wire, pool, templates, seconds * ROUNDS)),
    ]
    wire.close()
    rawWire.close()
    raw.close()
    return figures
  } finally {
    await pool.end()
    await stopChild(web)
    await stage.close()
  }
}

type Templates = Readonly<Record<(typeof TYPES)[number], string>>

/** Reads and creates of one Observation, round about with their limits. */
async function single(
  wire: Wire,
  rawWire: Wire,
  rawIds: readonly string[],
  template: string,
  seconds: number,
): Promise<Figure[]> {
  const stored: string[] = []
  const create = async (caller: number) => {
    const { status, location } = await wire.send(caller, 'POST', `${FHIR}Observation`, template)
    stored.push(idOf(location))
    return status === 201
  }
  const any = (ids: readonly string[]) => ids[Math.floor(Math.random() * ids.length)] ?? ''
  const calls = {
    create: {
      ours: create,
      limit: async (caller: number) =>
        (await rawWire.send(caller, 'POST', '/', template)).status === 201,
      required: '>= 0.5',
    },
    read: {
      ours: async (caller: number) =>
        (await wire.send(caller, 'GET', `${FHIR}Observation/${any(stored)}`, '')).status === 200,
      limit: async (caller: number) =>
        (await rawWire.send(caller, 'GET', `/${any(rawIds)}`, '')).status === 200,
      required: '>= 0.6',
    },
  }
  const figures: Figure[] = []
  for (const [name, { ours, limit, required }] of Object.entries(calls)) {
    const rounds: { ours: number; limit: number }[] = []
    await measure(CALLERS, WARM_UP_S, ours)
    await measure(CALLERS, WARM_UP_S, limit)
    for (let round = 0; round < ROUNDS; round++) {
      const bound = await measure(CALLERS, seconds, limit)
      const own = await measure(CALLERS, seconds, ours)
      if (own.failed + bound.failed > 0) throw new Error(`HTTP ${name}: calls failed`)
      rounds.push({ ours: own.perSecond, limit: bound.perSecond })
    }
    figures.push({
      what: `HTTP ${name}, ${CALLERS} callers`,
      ours: `${Math.round(median(rounds.map((round) => round.ours)))}/s`,
      limit: `${Math.round(median(rounds.map((round) => round.limit)))}/s`,
      ratio: median(rounds.map((round) => round.ours / round.limit)).toFixed(2),
      required,
    })
  }
  return figures
}

/** Each call of the load is one turn: nine creates, reads, updates and deletes. */
async function mix(
  wire: Wire,
  pool: pg.Pool,
  templates: Templates,
  seconds: number,
): Promise<Figure[]> {
  const times: number[] = []
  const step = async (caller: number, method: string, url: string, body: string) => {
    const began = performance.now()
    const answer = await wire.send(caller, method, FHIR + url, body)
    times.push(performance.now() - began)
    if (answer.status >= 300) throw new Error(`${method} ${url} answered ${answer.status}`)
    return answer
  }
  const turn = async (caller: number) => {
    const ids = new Map<string, string>()
    for (const type of TYPES) {
      const body = linked(templates[type], ids)
      const { location } = await step(caller, 'POST', type, body)
      ids.set(type, idOf(location))
    }
    for (const [type, id] of ids) await step(caller, 'GET', `${type}/${id}`, '')
    for (const [type, id] of ids) {
      const body = linked(templates[type as keyof Templates], ids)
      const changed = `{"id":"${id}","language":"en",${body.slice(1)}`
      await step(caller, 'PUT', `${type}/${id}`, changed)
    }
    for (const [type, id] of [...ids].reverse()) await step(caller, 'DELETE', `${type}/${id}`, '')
    return true
  }
  await measure(CALLERS, 1, turn)
  times.length = 0
  const [web, postgres, statements] = [webCpu(), postgresCpu(), await transactions(pool)]
  const began = performance.now()
  await measure(CALLERS, seconds, turn)
  const elapsed = (performance.now() - began) / 1000
  const count = times.length
  const each = (us: number) => `${Math.round(us / count)} us`
  const perRequest = ((await transactions(pool)) - statements) / count
  times.sort((a, b) => a - b)
  const at = (share: number) => `${(times[Math.floor(count * share)] ?? 0).toFixed(1)} ms`
  const row = (what: string, ours: string) => ({
    what: `HTTP mix, ${CALLERS} callers, ${what}`,
    ours,
    limit: '',
    ratio: '',
    required: '',
  })
  return [
    row('requests', `${Math.round(count / elapsed)}/s`),
    row('p50 and p99', `${at(0.5)}, ${at(0.99)}`),
    row('CPU a request, web', each(webCpu() - web)),
    row('CPU a request, PostgreSQL', each(postgresCpu() - postgres)),
    row('transactions a request', perRequest.toFixed(2)),
  ]
}

const webCpu = () => descendantsCpuUs((command) => command.includes('server/main.ts'))
const postgresCpu = () => descendantsCpuUs((command) => command.includes('postgres'))

/** Autocommitted statements; those of one batch count once. */
async function transactions(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query<{ n: string }>(
    'select xact_commit as n from pg_stat_database where datname = current_database()',
  )
  return Number(rows[0]?.n)
}

async function openRaw(stage: Stage, pool: pg.Pool, content: string) {
  const port = await freePort()
  await pool.query(
    'create table bench_http (id uuid primary key default gen_random_uuid(), content text not null)',
  )
  const { rows } = await pool.query<{ id: string }>(
    'insert into bench_http (content) select $1 from generate_series(1, $2) returning id',
    [content, RAW_ROWS],
  )
  const child = fork(path.join(import.meta.dirname, 'raw-http.ts'), {
    env: { ...stage.env, PORT: String(port) },
  })
  await once(child, 'message')
  return {
    url: `http://127.0.0.1:${port}/`,
    ids: rows.map(({ id }) => id),
    close: () => child.kill(),
  }
}

/** One real resource a type; of Location, which Synthea leaves out, a plain one. */
async function readTemplates(): Promise<Templates> {
  const location = {
    resourceType: 'Location',
    status: 'active',
    name: 'South Wing, second floor',
    managingOrganization: { reference: 'Organization/1' },
  }
  const resources = [...(await syntheaResources()), location]
  const template = (type: string) => {
    const found = resources.find((resource) => resource.resourceType === type)
    if (!found) throw new Error(`There is no ${type} in the test data`)
    const { id: _id, ...rest } = found as Resource
    return JSON.stringify(rest)
  }
  return Object.fromEntries(TYPES.map((type) => [type, template(type)])) as unknown as Templates
}

/** References to a type that is there already point to the turn's own resource. */
function linked(template: string, ids: ReadonlyMap<string, string>): string {
  return template.replaceAll(/"reference":"([A-Z][A-Za-z]+)\/[^"]+"/g, (whole, type: string) => {
    const id = ids.get(type)
    return id === undefined ? whole : `"reference":"${type}/${id}"`
  })
}

function idOf(location: string): string {
  return /\/([^/]+)\/_history\//.exec(location)?.[1] ?? ''
}
