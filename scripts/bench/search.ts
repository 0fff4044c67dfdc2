/**
 * Searches over HTTP with 16 callers in a large and a small Project, loaded by bundles, creates, updates and deletions.
 * Measures CPU time per search of the service and PostgreSQL at once, after ten seconds, and after vacuum, next to
 * Medplum's.
 */
import { randomUUIDv7 } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import type { Principal } from '../../shared/access/principal.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { type Figure, type Load, openWire, type Wire } from './load.ts'
import { createAll } from './samples.ts'
import type { Stage } from './stage.ts'

const CALLERS = 16
const SMALL = 0.01
const LATER_MS = 10_000
const GONE = 50
const FAMILIES =
  'Aalto Bauer Costa Dahl Egger Ferrari Gomez Horvat Ito Jung Klein Lopes Meyer Novak Olsen Popa Riva Sato Toth Weber'.split(
    ' ',
  )
const CODES = '8867-4 9279-1 8310-5 29463-7 8302-2 2339-0 718-7 2951-2 2823-3 4548-4'.split(' ')
const SYSTEM = 'urn:bench:patient'
/** Resources per patient, including itself. */
const A_PATIENT = 53
const GIVEN = ['Anna', 'Ben', 'Carla', 'Dan', 'Eva', 'Finn', 'Gila', 'Hugo', 'Ines', 'Jan']
const VISITS = 2
const MEASURED = 50

type Shape = readonly [
  name: string,
  query: (n: number) => string,
  /** Milliseconds of Medplum's server and database. */
  peer?: readonly [server: number, database: number],
]

/** Reference: Medplum 5.0.10, one process, PostgreSQL 18.4, two cores, 53,000 resources, 2026-11-23. */
function buildShapes(ids: readonly string[]): readonly Shape[] {
  const code = (n: number) => `http://loinc.org|${CODES[n % CODES.length]}`
  const family = (n: number) => FAMILIES[n % FAMILIES.length]
  const id = (n: number) => `Patient/${ids[(n * 7919) % ids.length]}`
  const born = (n: number) => birthDate(n % ids.length)
  const named = (n: number) =>
    `Patient?name=${family(n)}&birthdate=ge1960-01-01&birthdate=lt2000-01-01&active=true`
  const newest = (n: number) => `Observation?patient=${id(n)}&code=${code(n)}&_sort=-date`
  const included = (n: number) => `Observation?patient=${id(n)}&_include=Observation:subject`
  const revincluded = (n: number) => `Patient?_id=${id(n)}&_revinclude=Observation:subject`
  const has = (n: number) => `Patient?family=${family(n)}&_has:Encounter:subject:status=finished`
  const total = (n: number) => `Observation?code=${code(n)}&status=final&_total=accurate`
  return [
    ['name and birth date', named, [1.44, 1.63]],
    ['identifier', (n) => `Patient?identifier=${SYSTEM}|p${n % ids.length}`, [0.86, 0.63]],
    ['patient and code, newest', newest, [0.96, 0.74]],
    ['_include', included, [2.49, 1]],
    ['_revinclude', revincluded, [3.55, 1.56]],
    ['chain', (n) => `Encounter?patient.birthdate=${born(n)}`, [0.77, 0.99]],
    ['_has', has, [1.5, 1.74]],
    ['accurate total', total, [2.29, 11.67]],
    ['page of 100', () => 'Observation?status=final&_count=100', [4.74, 1.31]],
    [':exact', (n) => `Patient?family:exact=${family(n)}`],
    ['_has alone', (n) => `Patient?_has:Observation:subject:code=${code(n)}`],
    ['all matches old', () => 'Observation?status=preliminary&_sort=-date'],
    ['a day', (n) => `Observation?date=2025-0${1 + (n % 9)}-11`],
  ]
}

export async function search(
  stage: Stage,
  seconds: number,
  resources: number,
): Promise<readonly Figure[]> {
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
  await stage.services.database.query({ text: 'vacuum analyze' })
  await delay(LATER_MS)
  const settled = await measureAll(large, seconds)
  for (const { wire } of [large, small]) wire.close()
  return large.shapes.map(([name, , peer], i) => {
    const text = (loads: readonly Load[]) => {
      const { service = 0, stores = 0 } = loads[i]?.cpuMs ?? {}
      return `${service.toFixed(2)}+${stores.toFixed(2)}`
    }
    const { cpuMs, p99Ms = 0 } = atOnce[i] ?? {}
    const whole = (cpuMs?.service ?? 0) + (cpuMs?.stores ?? 0)
    return {
      what: name,
      ours: `at once ${text(atOnce)}, 10 s ${text(later)}, settled ${text(settled)}, small Project ${text(beside)} ms; p99 ${p99Ms.toFixed(0)} ms`,
      ...(peer && {
        limit: `peer ${peer[0]}+${peer[1]} ms`,
        ratio: ((peer[0] + peer[1]) / whole).toFixed(1),
        required: name === 'accurate total' ? '>= 4' : '>= 5',
      }),
    }
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
  for (const [, query] of shapes) await wire.send(0, 'GET', `/fhir/R4/${query(0)}`)
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

async function measureAll({ wire, shapes }: Clinic, seconds: number): Promise<readonly Load[]> {
  const loads: Load[] = []
  for (const [, query] of shapes) {
    let n = 0
    loads.push(await wire.load(seconds, () => ['GET', `/fhir/R4/${query(++n)}`]))
  }
  return loads
}

const some = (n: number, of: number) => (Math.imul(n + 1, 2_654_435_761) >>> 8) % of
const two = (n: number) => String(n).padStart(2, '0')

const birthDate = (n: number) =>
  `${1930 + some(n, 90)}-${two(1 + some(n + 7, 12))}-${two(1 + some(n + 13, 28))}`

function patient(n: number): Resource {
  return {
    resourceType: 'Patient',
    identifier: [{ system: SYSTEM, value: `p${n}` }],
    active: true,
    name: [
      {
        use: 'official',
        family: FAMILIES[n % FAMILIES.length],
        given: [GIVEN[some(n, GIVEN.length)]],
      },
    ],
    telecom: [{ system: 'phone', value: `+1555${n}` }],
    gender: n % 2 ? 'female' : 'male',
    birthDate: birthDate(n),
    address: [
      {
        line: [`${n} Main Street`],
        city: 'Springfield',
        state: 'CA',
        postalCode: String(90_000 + (n % 999)),
      },
    ],
  }
}

function generatePatientRecords(n: number, id: string): readonly Resource[] {
  const subject = { reference: `Patient/${id}` }
  const day = (i: number) => `2025-${two(1 + some(n + i, 12))}-${two(1 + some(n + 3 * i, 28))}`
  const visits = Array.from({ length: VISITS }, (_, i) => ({
    resourceType: 'Encounter',
    status: 'finished',
    class: { system: 'http://terminology.hl7.org/CodeSystem/v3-ActCode', code: 'AMB' },
    subject,
    period: { start: `${day(i)}T09:00:00Z`, end: `${day(i)}T09:30:00Z` },
  }))
  const measured = Array.from({ length: MEASURED }, (_, i) => {
    const code = CODES[i % CODES.length]
    return {
      resourceType: 'Observation',
      status: 'final',
      category: [
        {
          coding: [
            {
              system: 'http://terminology.hl7.org/CodeSystem/observation-category',
              code: 'vital-signs',
            },
          ],
        },
      ],
      code: {
        coding: [{ system: 'http://loinc.org', code, display: `Measurement ${code}` }],
        text: `Measurement ${code}`,
      },
      subject,
      effectiveDateTime: `${day(i)}T10:${two(i)}:00Z`,
      valueQuantity: {
        value: some(n + i, 200),
        unit: 'kg',
        system: 'http://unitsofmeasure.org',
        code: 'kg',
      },
    }
  })
  return [...visits, ...measured]
}
