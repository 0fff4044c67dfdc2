/**
 * GraphQL over HTTP with 8 callers: one read, patients with their encounters, observations and performers,
 * and counts. The nested query stands beside the same resolved parent by parent through the repository,
 * in this process and without HTTP, which flatters it.
 */
import type { Principal } from '../../shared/access/principal.ts'
import { parseJson } from '../../shared/fhir/json.ts'
import { isObject, type Resource } from '../../shared/fhir/resource.ts'
import { parseSearch } from '../../shared/fhir/search.ts'
import type { Repository } from '../../shared/store/repository.ts'
import type { Figure } from '../bench.ts'
import { type Load, measure, median, openWire } from './load.ts'
import { onLoadedStage } from './loaded.ts'
import type { Loaded } from './search-load.ts'

const CALLERS = 8
const NESTED = `{ PatientList(_count: 20) { id EncounterList(_reference: patient) { id
  ObservationList(_reference: encounter) { id code { text } subject { resource { __typename } } } } } }`

export async function graphql(seconds: number, resources: number): Promise<readonly Figure[]> {
  return onLoadedStage(resources, async ({ stage, baseUrl, token, principal, loaded }) => {
    const { repository } = stage.services
    const wire = await openWire(baseUrl, CALLERS, token, 'application/json')
    const asked = (query: () => string) => async (caller: number) => {
      const body = JSON.stringify({ query: query() })
      return (await wire.send(caller, 'POST', '/fhir/R4/$graphql', body)).status === 200
    }
    const began = performance.now()
    await asked(() => NESTED)(0)
    console.log(`The first query took ${Math.round(performance.now() - began)} ms`)
    const load = (query: () => string) => measure(CALLERS, seconds, asked(query))
    const read = await load(() => readOne(loaded))
    const counted = await load(
      () => '{ PatientConnection { count } ObservationConnection { count } }',
    )
    const nested = await medianOf(() => asked(() => NESTED)(0))
    const naive = await medianOf(() => parentByParent(repository, principal))
    wire.close()
    return [
      figure('one Patient by id', read),
      figure('counts of two types', counted),
      {
        what: '20 patients, four levels',
        ours: `p50 ${nested.toFixed(1)} ms`,
        limit: `p50 ${naive.toFixed(1)} ms parent by parent`,
        ratio: (naive / nested).toFixed(1),
        required: '>= 10',
      },
    ]
  })
}

function readOne({ samples }: Loaded): string {
  const patients = samples.get('Patient') ?? []
  const { id } = patients[Math.floor(Math.random() * patients.length)] ?? {}
  return `{ Patient(id: "${id}") { id name { family given } birthDate } }`
}

/** What NESTED asks for, a statement for every list and every reference. */
async function parentByParent(repository: Repository, principal: Principal): Promise<boolean> {
  const find = async (type: string, query: string): Promise<Resource[]> => {
    const { versions } = await repository.search(principal, parseSearch(type, query))
    return versions.map(({ content = '' }) => parseJson(content) as Resource)
  }
  for (const patient of await find('Patient', '_count=20')) {
    for (const encounter of await find('Encounter', `patient=Patient/${patient.id}`)) {
      for (const { subject } of await find('Observation', `encounter=Encounter/${encounter.id}`)) {
        const [type = '', id = ''] = isObject(subject) ? String(subject.reference).split('/') : []
        await repository.read(principal, type, id)
      }
    }
  }
  return true
}

const RUNS = 5

/** Milliseconds of one run; either takes longer than a round of the others. */
async function medianOf(run: () => Promise<boolean>): Promise<number> {
  const times: number[] = []
  for (let i = 0; i < RUNS; i++) {
    const began = performance.now()
    if (!(await run())) throw new Error('The nested query failed')
    times.push(performance.now() - began)
  }
  return median(times)
}

function figure(what: string, { failed, p50Ms, perSecond }: Load): Figure {
  if (failed > 0) throw new Error(`${what}: ${failed} queries failed`)
  const ours = `p50 ${p50Ms.toFixed(1)} ms, ${perSecond.toFixed(1)}/s`
  return { what, ours, limit: '', ratio: '', required: '' }
}
