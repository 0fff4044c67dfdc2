/**
 * Searches over HTTP with 16 callers in a large and a small Project, loaded by bundles, creates, updates and deletions.
 * Measures CPU time per search of the service and PostgreSQL at once, after ten seconds, and after vacuum, next to
 * Medplum's.
 */
import { randomUUIDv7 } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import type { Principal } from '../../shared/access/principal.ts'
import type { Figure } from '../bench.ts'
import {
  A_PATIENT,
  birthDate,
  CODES,
  FAMILIES,
  generatePatientRecords,
  patient,
  SYSTEM,
} from './clinic.ts'
import { descendantsCpuUs } from './cpu.ts'
import { measure, openWire, type Wire } from './load.ts'
import { createAll } from './samples.ts'
import { type Stage, withStage } from './stage.ts'

const CALLERS = 16
const SMALL = 0.01
const LATER_MS = 10_000
const GONE = 50

interface Shape {
  readonly name: string
  readonly query: (n: number) => string
  /** Milliseconds of Medplum's server and database. */
  readonly peer: readonly [server: number, database: number] | undefined
}

/** Reference: Medplum 5.0.10, one process, PostgreSQL 18.4, two cores, 53,000 resources, 2026-11-23. */
function buildShapes(ids: readonly string[]): readonly Shape[] {
  const code = (n: number) => `http://loinc.org|${CODES[n % CODES.length]}`
  const family = (n: number) => FAMILIES[n % FAMILIES.length]
  const id = (n: number) => `Patient/${ids[(n * 7919) % ids.length]}`
  const born = (n: number) => birthDate(n % ids.length)
  return [
    {
      name: 'name and birth date',
      query: (n) =>
        `Patient?name=${family(n)}&birthdate=ge1960-01-01&birthdate=lt2000-01-01&active=true`,
      peer: [1.44, 1.63],
    },
    {
      name: 'identifier',
      query: (n) => `Patient?identifier=${SYSTEM}|p${n % ids.length}`,
      peer: [0.86, 0.63],
    },
    {
      name: 'patient and code, newest',
      query: (n) => `Observation?patient=${id(n)}&code=${code(n)}&_sort=-date`,
      peer: [0.96, 0.74],
    },
    {
      name: '_include',
      query: (n) => `Observation?patient=${id(n)}&_include=Observation:subject`,
      peer: [2.49, 1],
    },
    {
      name: '_revinclude',
      query: (n) => `Patient?_id=${id(n)}&_revinclude=Observation:subject`,
      peer: [3.55, 1.56],
    },
    { name: 'chain', query: (n) => `Encounter?patient.birthdate=${born(n)}`, peer: [0.77, 0.99] },
    {
      name: '_has',
      query: (n) => `Patient?family=${family(n)}&_has:Encounter:subject:status=finished`,
      peer: [1.5, 1.74],
    },
    {
      name: 'accurate total',
      query: (n) => `Observation?code=${code(n)}&status=final&_total=accurate`,
      peer: [2.29, 11.67],
    },
    { name: 'page of 100', query: () => 'Observation?status=final&_count=100', peer: [4.74, 1.31] },
    { name: ':exact', query: (n) => `Patient?family:exact=${family(n)}`, peer: undefined },
    {
      name: '_has alone',
      query: (n) => `Patient?_has:Observation:subject:code=${code(n)}`,
      peer: undefined,
    },
    {
      name: 'all matches old',
      query: () => 'Observation?status=preliminary&_sort=-date',
      peer: undefined,
    },
    { name: 'a day', query: (n) => `Observation?date=2025-0${1 + (n % 9)}-11`, peer: undefined },
  ]
}

export function search(seconds: number, resources: number): Promise<readonly Figure[]> {
  return withStage(async (stage) => {
    await stage.start('worker')
    const large = await openClinic(stage, resources)
    const small = await openClinic(stage, resources * SMALL)
    const began = performance.now()
    await load(stage, large)
    await load(stage, small)
    await change(large)
    console.log(`loaded within ${Math.round((performance.now() - began) / 1000)} s`)
    const atOnce = await measureAll(large, seconds)
    await delay(LATER_MS)
    const later = await measureAll(large, seconds)
    const beside = await measureAll(small, seconds)
    await stage.services.database.query({ text: 'vacuum analyze', values: [] })
    await delay(LATER_MS)
    const settled = await measureAll(large, seconds)
    for (const { wire } of [large, small]) wire.close()
    return large.shapes.map((shape, i) =>
      toFigure(shape, [atOnce[i], later[i], settled[i], beside[i]]),
    )
  })
}

interface Clinic {
  readonly principal: Principal
  readonly wire: Wire
  readonly ids: readonly string[]
  readonly shapes: readonly Shape[]
}

async function openClinic(stage: Stage, resources: number): Promise<Clinic> {
  const { token, principal } = await stage.openProject()
  const wire = await openWire(stage.baseUrl, CALLERS, token, 'application/fhir+json')
  const ids = Array.from({ length: Math.ceil(resources / A_PATIENT) }, () => randomUUIDv7())
  const shapes = buildShapes(ids)
  for (const { query } of shapes) await wire.send(0, 'GET', `/fhir/R4/${query(0)}`)
  return { principal, wire, ids, shapes }
}

async function load({ services }: Stage, { principal, ids }: Clinic): Promise<void> {
  await createAll(
    services,
    principal,
    ids.map((id, n) => ({ ...patient(n), id })),
  )
  for (const [n, id] of ids.entries())
    await createAll(services, principal, generatePatientRecords(n, id))
}

async function change({ wire, ids }: Clinic): Promise<void> {
  let next = 0
  const callers = Array.from({ length: CALLERS }, async (_, caller) => {
    const send = (method: string, path: string, body: object) =>
      wire.send(caller, method, `/fhir/R4/${path}`, JSON.stringify(body))
    for (let n = next++; n < ids.length; n = next++) {
      const own = { ...patient(n), id: ids[n] }
      await send('PUT', `Patient/${ids[n]}`, { ...own, maritalStatus: { text: 'married' } })
      await send('POST', 'Patient', { ...patient(n), active: false, identifier: [] })
      if (n > 0 && n % GONE === 0) await wire.send(caller, 'DELETE', `/fhir/R4/Patient/${ids[n]}`)
    }
  })
  await Promise.all(callers)
}

interface Cost {
  readonly service: number
  readonly database: number
  readonly p99Ms: number
}

async function measureAll({ wire, shapes }: Clinic, seconds: number): Promise<readonly Cost[]> {
  const costs: Cost[] = []
  for (const shape of shapes) costs.push(await measureShape(wire, shape, seconds))
  return costs
}

async function measureShape(wire: Wire, { query }: Shape, seconds: number): Promise<Cost> {
  const isService = (command: string) => /(server|worker)\/main/.test(command)
  const used = () => [descendantsCpuUs(isService), descendantsCpuUs()] as const
  let n = 0
  const before = used()
  const { p99Ms } = await measure(CALLERS, seconds, async (caller) => {
    n += 1
    return (await wire.send(caller, 'GET', `/fhir/R4/${query(n)}`)) === 200
  })
  const [service, all] = used().map((us, i) => (us - (before[i] ?? 0)) / 1000 / n)
  return { service: service ?? 0, database: (all ?? 0) - (service ?? 0), p99Ms }
}

function toFigure({ name, peer }: Shape, costs: readonly (Cost | undefined)[]): Figure {
  const text = (cost: Cost | undefined) =>
    cost === undefined ? '' : `${cost.service.toFixed(2)}+${cost.database.toFixed(2)}`
  const [atOnce, later, settled, beside] = costs
  const whole = (atOnce?.service ?? 0) + (atOnce?.database ?? 0)
  return {
    what: name,
    ours: `at once ${text(atOnce)}, 10 s ${text(later)}, settled ${text(settled)}, small Project ${text(beside)} ms; p99 ${atOnce?.p99Ms.toFixed(0)} ms`,
    limit: peer === undefined ? '' : `peer ${peer[0]}+${peer[1]} ms`,
    ratio: peer === undefined ? '' : ((peer[0] + peer[1]) / whole).toFixed(1),
    required: peer === undefined ? '' : name === 'accurate total' ? '>= 4' : '>= 5',
  }
}
