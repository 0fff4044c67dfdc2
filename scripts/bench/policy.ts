/**
 * Reads and searches over HTTP with 16 callers: under a policy of five entries with chained criteria and
 * hidden fields, beside the same requests without a policy.
 */
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Figure } from '../bench.ts'
import { connect } from '../session.ts'
import { type Load, measure, openWire, type Wire } from './load.ts'
import { onLoadedStage } from './loaded.ts'
import type { Loaded } from './search-load.ts'

const CALLERS = 16
const VALUES = 200
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

async function compare(shape: Shape, free: Wire, bound: Wire, seconds: number): Promise<Figure> {
  const asking = (wire: Wire) => async (caller: number) => {
    const path = shape.paths[Math.floor(Math.random() * shape.paths.length)]
    const { status } = await wire.send(caller, 'GET', `/fhir/R4/${path}`, '')
    // Under the policy some are out of sight.
    return status === 200 || status === 404
  }
  await measure(CALLERS, 0.5, asking(free))
  await measure(CALLERS, 0.5, asking(bound))
  const limit = await measure(CALLERS, seconds, asking(free))
  const own = await measure(CALLERS, seconds, asking(bound))
  if (own.failed + limit.failed > 0) throw new Error(`${shape.name}: requests failed`)
  return {
    what: shape.name,
    ours: said(own),
    limit: said(limit),
    ratio: (limit.perSecond / own.perSecond).toFixed(2),
    required: `<= ${MOST}`,
  }
}

function said({ p50Ms, p99Ms, perSecond }: Load): string {
  return `p50 ${p50Ms.toFixed(1)}, p99 ${p99Ms.toFixed(1)} ms, ${Math.round(perSecond)}/s`
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
  ]
}
