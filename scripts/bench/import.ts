/**
 * The same resources as transaction bundles over HTTP, and as NDJSON files imported by a worker, alternately into one
 * database.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Resource } from '../../shared/fhir/resource.ts'
import { syntheaTexts } from '../../test/fixtures/resources.ts'
import type { Figure } from '../bench.ts'
import { alternate, measure, median, medianRatio, openWire, type Wire } from './load.ts'
import { copies, syntheaResources } from './samples.ts'
import { type Stage, withStage } from './stage.ts'

const ROUNDS = 3
/** More frequent polls return 429. */
const POLL_MS = 250
/** A Project change is known to all processes by then. */
const KNOWN_MS = 5000

export function imports(seconds: number, resources: number): Promise<readonly Figure[]> {
  return withStage(async (stage) => {
    await stage.start('worker')
    const token = await openImporter(stage)
    const wire = await openWire(stage.baseUrl, 1, token, 'application/fhir+json')
    const texts = await syntheaTexts()
    const inBundles = (await syntheaResources()).length / texts.length
    const { ours, limit } = await alternate(ROUNDS, {
      limit: async () => (await bundles(wire, texts, seconds)) * inBundles,
      ours: () => oneImport(`${stage.baseUrl}fhir/R4/`, token, resources),
    })
    wire.close()
    const show = (rates: readonly number[]) => `${Math.round(median(rates))} resources/s`
    const what = 'import beside bundles of one at a time'
    const ratio = medianRatio(ours, limit)
    return [{ what, ours: show(ours), limit: show(limit), ratio, required: '>= 3' }]
  })
}

async function openImporter(stage: Stage): Promise<string> {
  const { token, admin, projectId } = await stage.openProject()
  const url = `fhir/R4/Project/${projectId}`
  const systemSetting = [{ name: 'updateAsCreate', valueBoolean: true }]
  await admin.put(url, { ...(await admin.get(url)), systemSetting })
  await delay(KNOWN_MS)
  return token
}

async function bundles(wire: Wire, texts: readonly string[], seconds: number): Promise<number> {
  let turn = 0
  const { perSecond } = await measure(1, seconds, async (caller) => {
    const text = texts[turn++ % texts.length]
    return (await wire.send(caller, 'POST', '/fhir/R4/', text)) === 200
  })
  return perSecond
}

/** Returns resources per second, from kick-off to the manifest. */
async function oneImport(base: string, token: string, count: number): Promise<number> {
  const send = (url: string, body?: string, type = 'application/fhir+json') =>
    fetch(new URL(url, base), {
      method: body === undefined ? 'GET' : 'POST',
      headers: { Authorization: `Bearer ${token}`, 'Content-Type': type },
      ...(body === undefined ? {} : { body }),
    })
  const resources: Resource[] = []
  for await (const copy of copies(count)) resources.push(...copy)
  const parameter: unknown[] = []
  for (const [type, list] of Map.groupBy(resources, ({ resourceType }) => resourceType)) {
    const text = list.map((resource) => JSON.stringify(resource)).join('\n')
    const binary = await send('Binary', text, 'application/fhir+ndjson')
    const { id } = (await binary.json()) as { id: string }
    const part = [
      { name: 'type', valueCode: type },
      { name: 'url', valueUrl: `Binary/${id}` },
    ]
    parameter.push({ name: 'input', part })
  }
  const began = performance.now()
  const accepted = await send('$import', JSON.stringify({ resourceType: 'Parameters', parameter }))
  const status = accepted.headers.get('content-location') ?? ''
  for (;;) {
    const answer = await send(status)
    if (answer.status === 200) {
      const { error } = (await answer.json()) as { error: unknown[] }
      if (error.length > 0) throw new Error('Lines were refused')
      return count / ((performance.now() - began) / 1000)
    }
    if (answer.status !== 202 && answer.status !== 429) {
      throw new Error(`The import answered ${answer.status}`)
    }
    await delay(POLL_MS)
  }
}
