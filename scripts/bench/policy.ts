/**
 * Reads, searches and GraphQL over HTTP with 16 callers: under a policy of five entries with chained
 * criteria and hidden fields, beside the same requests without a policy, round about. Compared is the time
 * that the service and PostgreSQL are at work for a request: it stays what it is on a busy machine.
 */
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Figure } from '../bench.ts'
import { connect } from '../session.ts'
import { descendantsCpuUs } from './cpu.ts'
import { type Load, measure, median, openWire, type Wire } from './load.ts'
import { onLoadedStage } from './loaded.ts'
import type { Loaded } from './search-load.ts'

const CALLERS = 16
const VALUES = 200
const ROUNDS = 5
const WARM_UP_SECONDS = 1
/** Times the request without policy. */
const MOST = 1.5

const ENTRIES = [
  {
    resourceType: 'Patient',
    criteria: 'Patient?gender=female&active:not=false',
    hiddenFields: ['telecom', 'address.line'],
  },
  { resourceType: 'Patient', criteria: 'Patient?gender=male', hiddenFields: ['address'] },
  {
    resourceType: 'Observation',
    criteria: 'Observation?status=final&subject:Patient.gender=female',
    hiddenFields: ['issued'],
  },
  { resourceType: 'Encounter', criteria: 'Encounter?subject:Patient.gender=female' },
  { resourceType: 'Organization' },
]

interface Shape {
  readonly name: string
  readonly paths: readonly string[]
}

export async function policy(seconds: number, resources: number): Promise<readonly Figure[]> {
  return onLoadedStage(resources, async ({ baseUrl, token, projectId, loaded }) => {
    const limited = await memberUnder(projectId)
    const wires = await Promise.all(
      [token, limited].map((one) => openWire(baseUrl, CALLERS, one, 'application/fhir+json')),
    )
    const [free, bound] = wires
    if (free === undefined || bound === undefined) throw new Error('There is no connection')
    const figures: Figure[] = []
    for (const shape of shapesOf(loaded)) {
      figures.push(await compare(shape, free, bound, seconds))
    }
    for (const wire of wires) wire.close()
    return figures
  })
}

/** A client of the Project under a policy of its own; answers its token. */
async function memberUnder(projectId: string): Promise<string> {
  const admin = await connect()
  const meta = { project: projectId }
  const made = await admin.post('fhir/R4/AccessPolicy', {
    resourceType: 'AccessPolicy',
    meta,
    resource: ENTRIES,
  })
  const accessPolicy = { reference: `AccessPolicy/${made.id}` }
  const body = { name: 'Limited', accessPolicy }
  const client = await admin.post(`admin/projects/${projectId}/client`, body)
  const { token } = await connect({ id: String(client.id), secret: String(client.secret) })
  return token
}

interface Round extends Load {
  /** Microseconds a request, of all processes but this one. */
  readonly cpuUs: number
}

async function compare(shape: Shape, free: Wire, bound: Wire, seconds: number): Promise<Figure> {
  await measureRound(shape, free, WARM_UP_SECONDS)
  await measureRound(shape, bound, WARM_UP_SECONDS)
  const rounds: { free: Round; bound: Round }[] = []
  for (let i = 0; i < ROUNDS; i++) {
    const limit = await measureRound(shape, free, seconds / ROUNDS)
    rounds.push({ free: limit, bound: await measureRound(shape, bound, seconds / ROUNDS) })
  }
  return {
    what: shape.name,
    ours: said(rounds.map((round) => round.bound)),
    limit: said(rounds.map((round) => round.free)),
    ratio: median(rounds.map((round) => round.bound.cpuUs / round.free.cpuUs)).toFixed(2),
    required: `<= ${MOST}`,
  }
}

async function measureRound({ name, paths }: Shape, wire: Wire, seconds: number): Promise<Round> {
  let sent = 0
  const before = descendantsCpuUs()
  const load = await measure(CALLERS, seconds, async (caller) => {
    sent++
    const path = paths[Math.floor(Math.random() * paths.length)]
    const { status } = await wire.send(caller, 'GET', `/fhir/R4/${path}`, '')
    // Under the policy some are out of sight.
    return status === 200 || status === 404
  })
  if (load.failed > 0) throw new Error(`${name}: requests failed`)
  return { ...load, cpuUs: (descendantsCpuUs() - before) / sent }
}

function said(rounds: readonly Round[]): string {
  const [p50, cpu] = [rounds.map(({ p50Ms }) => p50Ms), rounds.map(({ cpuUs }) => cpuUs)].map(
    median,
  )
  return `p50 ${p50?.toFixed(1)} ms, CPU ${((cpu ?? 0) / 1000).toFixed(2)} ms`
}

function asked(query: string): string {
  return `$graphql?query=${encodeURIComponent(query)}`
}

function shapesOf({ samples }: Loaded): Shape[] {
  const of = (type: string, path: (resource: Resource) => string): readonly string[] => {
    const all = samples.get(type) ?? []
    const step = Math.max(1, Math.floor(all.length / VALUES))
    return all.filter((_, i) => i % step === 0).map(path)
  }
  const subject = ({ subject }: Resource) => (subject as { reference: string }).reference
  return [
    { name: 'read Patient', paths: of('Patient', ({ id }) => `Patient/${id}`) },
    { name: 'read Observation', paths: of('Observation', ({ id }) => `Observation/${id}`) },
    {
      name: 'Patient by birthdate',
      paths: of('Patient', ({ birthDate }) => `Patient?birthdate=${birthDate}`),
    },
    {
      name: 'Observations of a patient',
      paths: of(
        'Observation',
        (resource) => `Observation?subject=${subject(resource)}&_sort=-date`,
      ),
    },
    { name: 'newest Observations', paths: ['Observation?_sort=-_lastUpdated'] },
    {
      name: 'Encounters of a patient, included',
      paths: of(
        'Encounter',
        (resource) => `Encounter?subject=${subject(resource)}&_include=Encounter:subject`,
      ),
    },
    {
      name: 'GraphQL, a patient by id',
      paths: of('Patient', ({ id }) => asked(`{ Patient(id: "${id}") { id name { family } } }`)),
    },
    {
      name: 'GraphQL, encounters and observations',
      paths: of('Encounter', (resource) =>
        asked(`{ EncounterList(subject: "${subject(resource)}", _count: 5) { id status
          ObservationList(_reference: encounter) { id code { text } subject { resource { __typename } } } } }`),
      ),
    },
  ]
}
