/**
 * Mixed load at a steady rate on two web processes and two workers: reads, searches, writes, bots, a Subscription to a
 * bot, and an export a minute. `npm run bench -- mixed 3600` takes an hour. A line a minute on stderr; the figures
 * compare the last sixth of the time with the second, since caches fill in the first.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { attempt } from '../../shared/core/errors.ts'
import { readPssBytes } from '../../shared/core/gauges.ts'
import { freePort } from '../service.ts'
import { awaitJob, type Figure, openWire, part, type Request, type Wire } from './load.ts'
import { load, pickSample, syntheaResources } from './samples.ts'
import type { BenchProject, Stage } from './stage.ts'

const RESOURCES = 20_000
const MINUTE_MS = 60_000
/** Calls per second by kind; a tenth of the capacity of two cores. */
const RATES = { read: 20, search: 12, create: 8, update: 4, echo: 10, write: 3 } as const
const CONNECTIONS = 64
/** Growth that is still noise. */
const GROWTH = 1.1
const PATIENT_SEARCHES = [
  '_count=20',
  'gender=female&_count=20',
  'birthdate=ge1960&_sort=birthdate',
]

type Kind = keyof typeof RATES

interface Minute {
  readonly times: Record<Kind, number[]>
  errors: number
  memoryMb: Readonly<Record<string, number>>
}

export async function mixed(stage: Stage, seconds: number): Promise<readonly Figure[]> {
  const project = await stage.openProject()
  await load(stage.services, project.principal, RESOURCES)
  const port = String(await freePort())
  const second = await stage.start('web', { PORT: port })
  const workers = [await stage.start('worker'), await stage.start('worker')]
  const urls = [stage.baseUrl, second.url]
  const requests = await prepareRequests(project)
  const open = (url: string) => openWire(url, CONNECTIONS, project.token, 'application/fhir+json')
  const wires = await Promise.all(urls.map(open))
  const minutes: Minute[] = []
  const ends = performance.now() + seconds * 1000
  while (performance.now() < ends) {
    const minute = await runMinute(wires, requests, Math.min(MINUTE_MS, ends - performance.now()))
    if (!(await exportAll(stage.baseUrl, project.token))) minute.errors++
    minute.memoryMb = {
      'web 2': pssMb(second.pid),
      'worker 1': pssMb(workers[0]?.pid),
      'worker 2': pssMb(workers[1]?.pid),
    }
    console.error(formatMinute(minutes.push(minute), minute))
  }
  for (const wire of wires) wire.close()
  return compareEnds(minutes)
}

async function prepareRequests(project: BenchProject): Promise<Record<Kind, () => Request>> {
  const { deploy, client, admin } = project
  const echo = await deploy('return event.input')
  const write = await deploy(
    `const { id } = await medplum.createResource({ resourceType: 'Basic', code: { text: 'bench' } })
     return await medplum.readResource('Basic', id)`,
  )
  const bot = await deploy(`console.log(event.input.id)`)
  await admin.createResource({
    resourceType: 'Subscription',
    meta: { project: project.projectId },
    status: 'active',
    reason: 'Bench',
    criteria: 'Observation?code=mixed-load',
    channel: {
      type: 'rest-hook',
      endpoint: bot.slice('/fhir/R4/'.length).replace('/$execute', ''),
    },
  })
  const patients = await client.searchResources('Patient', { _count: '100' })
  const observation = (await syntheaResources()).find((one) => one.resourceType === 'Observation')
  const { id: _id, ...body } = { ...observation, code: { coding: [{ code: 'mixed-load' }] } } as {
    id?: string
  }
  const observations = await client.searchResources('Observation', { _count: '100' })
  return {
    read: () => ['GET', `/fhir/R4/Patient/${pickSample(patients).id}`],
    search: () =>
      Math.random() < 0.5
        ? ['GET', `/fhir/R4/Patient?${pickSample(PATIENT_SEARCHES)}`]
        : ['GET', `/fhir/R4/Observation?patient=${pickSample(patients).id}&_sort=-date&_count=20`],
    create: () => ['POST', '/fhir/R4/Observation', JSON.stringify(body)],
    update: () => {
      const next = { ...pickSample(observations), language: `x-${Math.floor(Math.random() * 1e9)}` }
      return ['PUT', `/fhir/R4/Observation/${next.id}`, JSON.stringify(next)]
    },
    echo: () => ['POST', echo, '{}'],
    write: () => ['POST', write, '{}'],
  }
}

/** Sends at a steady rate, whether or not earlier requests have ended. */
async function runMinute(
  wires: readonly Wire[],
  requests: Record<Kind, () => Request>,
  ms: number,
): Promise<Minute> {
  const kinds = Object.keys(RATES) as Kind[]
  const times = Object.fromEntries(kinds.map((kind) => [kind, []])) as unknown as Minute['times']
  const minute: Minute = { times, errors: 0, memoryMb: {} }
  const free = wires.flatMap((wire) =>
    Array.from({ length: CONNECTIONS }, (_, n) => [wire, n] as const),
  )
  const began = performance.now()
  const call = async (kind: Kind) => {
    // Both web processes in turn: connections of both are in one list.
    const connection = free.splice(Math.floor(Math.random() * free.length), 1)[0]
    if (connection === undefined) return void minute.errors++
    const [wire, caller] = connection
    const sent = performance.now()
    const status = await wire.send(caller, ...requests[kind]()).catch(() => 0)
    if (status === 200 || status === 201) times[kind].push(performance.now() - sent)
    else minute.errors++
    free.push(connection)
  }
  await Promise.all(
    kinds.map(async (kind) => {
      const calls: Promise<unknown>[] = []
      for (let n = 0; (n * 1000) / RATES[kind] < ms; n++) {
        await delay(Math.max(0, began + (n * 1000) / RATES[kind] - performance.now()))
        calls.push(call(kind))
      }
      await Promise.all(calls)
    }),
  )
  return minute
}

async function exportAll(baseUrl: string, token: string): Promise<boolean> {
  const headers = { Authorization: `Bearer ${token}`, Prefer: 'respond-async' }
  const accepted = await fetch(new URL('fhir/R4/$export?_type=Patient', baseUrl), { headers })
  if (accepted.status !== 202) return false
  const { manifest } = await awaitJob<{ output: readonly unknown[] }>(token, accepted)
  return manifest.output.length > 0
}

/** Returns the proportional set size of a process and its descendants in MB; 0 when it has ended. */
function pssMb(pid = 0): number {
  const own = (readPssBytes(pid) ?? 0) / 1024 ** 2
  return readChildren(pid).reduce((sum, child) => sum + pssMb(child), own)
}

function readChildren(pid: number): readonly number[] {
  const threads = attempt(() => readdirSync(`/proc/${pid}/task`)) ?? []
  const children = threads.map(
    (thread) => attempt(() => readFileSync(`/proc/${pid}/task/${thread}/children`, 'latin1')) ?? '',
  )
  return children.join(' ').split(' ').filter(Boolean).map(Number)
}

const allTimes = ({ times }: Minute) => Object.values(times).flat()

function formatMinute(number: number, minute: Minute): string {
  const times = allTimes(minute)
  const memory = Object.entries(minute.memoryMb).map(([name, mb]) => `${name} ${mb.toFixed(0)} MB`)
  const ms = (share: number) => part(times, share).toFixed(0)
  return `${number}: ${times.length} calls, ${minute.errors} errors, p50 ${ms(0.5)} ms, p99 ${ms(0.99)} ms, ${memory.join(', ')}`
}

function compareEnds(minutes: readonly Minute[]): readonly Figure[] {
  const count = Math.max(1, Math.floor(minutes.length / 6))
  const [early, late] = [minutes.slice(count, 2 * count), minutes.slice(-count)]
  const mean = (some: readonly Minute[], name: string) =>
    some.reduce((sum, { memoryMb }) => sum + (memoryMb[name] ?? 0), 0) / some.length
  const p99 = (some: readonly Minute[]) => part(some.flatMap(allTimes), 0.99)
  const errors = minutes.reduce((sum, minute) => sum + minute.errors, 0)
  const figure = (what: string, ours: number, limit: number, unit: string): Figure => ({
    what,
    ours: `${ours.toFixed(0)} ${unit}`,
    limit: `${limit.toFixed(0)} ${unit}`,
    ratio: (ours / limit).toFixed(2),
    required: `<= ${GROWTH}`,
  })
  return [
    { what: `errors in ${minutes.length} minutes`, ours: String(errors), required: '0' },
    figure('p99, last sixth to second sixth', p99(late), p99(early), 'ms'),
    ...Object.keys(minutes[0]?.memoryMb ?? {}).map((name) =>
      figure(`PSS of ${name}, last sixth to second`, mean(late, name), mean(early, name), 'MB'),
    ),
  ]
}
