/**
 * The same resources as transaction bundles over HTTP, and as NDJSON files imported by a worker, alternately into one
 * database.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { syntheaTexts } from '../../test/fixtures/resources.ts'
import { alternate, awaitJob, type Figure, openWire, type Wire } from './load.ts'
import { copies, syntheaResources } from './samples.ts'
import type { BenchProject, Stage } from './stage.ts'

const ROUNDS = 3
/** A Project change is known to all processes by then. */
const KNOWN_MS = 5000

export async function imports(
  stage: Stage,
  seconds: number,
  resources: number,
): Promise<readonly Figure[]> {
  await stage.start('worker')
  const project = await stage.openProject()
  const { token } = project
  await allowOwnIds(project)
  const wire = await openWire(stage.baseUrl, 1, token, 'application/fhir+json')
  const texts = await syntheaTexts()
  const inBundles = (await syntheaResources()).length / texts.length
  const { ours, limit, ratio } = await alternate(
    ROUNDS,
    () => oneImport(`${stage.baseUrl}fhir/R4/`, token, resources),
    async () => (await bundles(wire, texts, seconds)) * inBundles,
  )
  wire.close()
  return [
    {
      what: 'import during bundles sent one at a time',
      ours: `${Math.round(ours)} resources/s`,
      limit: `${Math.round(limit)} resources/s`,
      ratio,
      required: '>= 3',
    },
  ]
}

async function bundles(wire: Wire, texts: readonly string[], seconds: number): Promise<number> {
  let turn = 0
  const next = () => texts[turn++ % texts.length]
  const { perSecond } = await wire.load(seconds, () => ['POST', '/fhir/R4/', next()])
  return perSecond
}

/** Lets the Project's clients choose the ids of new resources. */
export async function allowOwnIds({ admin, projectId }: BenchProject): Promise<void> {
  const url = `fhir/R4/Project/${projectId}`
  const systemSetting = [{ name: 'updateAsCreate', valueBoolean: true }]
  await admin.put(url, { ...(await admin.get(url)), systemSetting })
  await delay(KNOWN_MS)
}

/** Returns resources per second, from kick-off to the manifest. */
async function oneImport(base: string, token: string, count: number): Promise<number> {
  const resources = (await Array.fromAsync(copies(count))).flat()
  const inputs = [...Map.groupBy(resources, ({ resourceType }) => resourceType)].map(
    ([type, list]) => ({
      type,
      body: () => list.map((resource) => JSON.stringify(resource)).join('\n'),
    }),
  )
  return count / (await importInputs(base, token, inputs))
}

/** One NDJSON file of a type. */
export interface Input {
  readonly type: string
  readonly body: () => NonNullable<RequestInit['body']>
}

/** Returns the seconds from kick-off to the manifest. */
export async function importInputs(
  base: string,
  token: string,
  inputs: readonly Input[],
): Promise<number> {
  const post = (path: string, type: string, body: ReturnType<Input['body']>) =>
    fetch(base + path, {
      method: 'POST',
      headers: { Authorization: `Bearer ${token}`, 'Content-Type': type },
      body,
      duplex: 'half',
    })
  const parameter: unknown[] = []
  for (const { type, body } of inputs) {
    const binary = await post('Binary', 'application/fhir+ndjson', body())
    const { id } = (await binary.json()) as { id: string }
    const part = [
      { name: 'type', valueCode: type },
      { name: 'url', valueUrl: `Binary/${id}` },
    ]
    parameter.push({ name: 'input', part })
  }
  const began = performance.now()
  const input = JSON.stringify({ resourceType: 'Parameters', parameter })
  const accepted = await post('$import', 'application/fhir+json', input)
  const { manifest } = await awaitJob<{ error: unknown[] }>(token, accepted)
  if (manifest.error.length > 0) throw new Error('Lines were refused')
  return (performance.now() - began) / 1000
}
