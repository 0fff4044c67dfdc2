/**
 * The same resources as transaction bundles that a client sends over HTTP, one after the other and eight
 * at a time, and as files of NDJSON that a worker imports. Round about, into the same database.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Resource } from '../../shared/fhir/resource.ts'
import { syntheaTexts } from '../../test/fixtures/resources.ts'
import type { Figure } from '../bench.ts'
import { freePort } from '../service.ts'
import { connect } from '../session.ts'
import { startWeb, startWorker, stopChild, untilReady } from './children.ts'
import { measure, median, openWire, type Wire } from './load.ts'
import { openProject } from './project.ts'
import { syntheaResources } from './samples.ts'
import { openStage, type Stage } from './stage.ts'

const ROUNDS = 3
const CALLERS = 8
/** More frequent polls are answered 429. */
const POLL_MS = 250
/** A change of a Project is known everywhere by then. */
const KNOWN_MS = 5000

export async function imports(seconds: number, resources: number): Promise<readonly Figure[]> {
  const port = await freePort()
  const baseUrl = `http://127.0.0.1:${port}/`
  const stage = await openStage({ PORT: String(port), BASE_URL: baseUrl })
  const children = [startWeb(stage.env), startWorker(stage.env)]
  try {
    await untilReady(baseUrl, true)
    const token = await openImporter(stage, baseUrl)
    const wire = await openWire(baseUrl, CALLERS, token, 'application/fhir+json')
    const samples = await syntheaResources()
    const texts = await syntheaTexts()
    const rounds: Record<'one' | 'eight' | 'ours', number>[] = []
    for (let round = 0; round <= ROUNDS; round++) {
      const one = await bundles(wire, texts, samples.length, 1, seconds)
      const eight = await bundles(wire, texts, samples.length, CALLERS, seconds)
      const files = filesOf(samples, round, resources)
      const ours = await oneImport(`${baseUrl}fhir/R4/`, token, files)
      // The first round warms all of them up.
      if (round > 0) rounds.push({ one, eight, ours })
    }
    wire.close()
    const of = (name: 'one' | 'eight' | 'ours') =>
      Math.round(median(rounds.map((round) => round[name])))
    return (['one', 'eight'] as const).map((name) => ({
      what: `import beside bundles of ${name} at a time`,
      ours: `${of('ours')} resources/s`,
      limit: `${of(name)} resources/s`,
      ratio: median(rounds.map((round) => round.ours / round[name])).toFixed(2),
      required: name === 'one' ? '>= 3' : '',
    }))
  } finally {
    await Promise.all(children.map(stopChild))
    await stage.close()
  }
}

/** A client of a Project that lets its members choose ids. */
async function openImporter(stage: Stage, baseUrl: string): Promise<string> {
  const { token, projectId } = await openProject(stage, baseUrl)
  const admin = await connect()
  const url = `fhir/R4/Project/${projectId}`
  const systemSetting = [{ name: 'updateAsCreate', valueBoolean: true }]
  const project = JSON.stringify({ ...(await admin.get(url)), systemSetting })
  await admin.send('PUT', url, project, 'application/fhir+json')
  await delay(KNOWN_MS)
  return token
}

/** Resources a second. */
async function bundles(
  wire: Wire,
  texts: readonly string[],
  resources: number,
  callers: number,
  seconds: number,
): Promise<number> {
  let turn = 0
  const load = await measure(callers, seconds, async (caller) => {
    const text = texts[turn++ % texts.length] ?? ''
    return (await wire.send(caller, 'POST', '/fhir/R4/', text)).status === 200
  })
  if (load.failed > 0) throw new Error('Bundles failed')
  return (load.perSecond * resources) / texts.length
}

interface File {
  readonly type: string
  readonly text: string
}

/** Copies of the samples, each under ids of its own, until there are so many. */
function filesOf(samples: readonly Resource[], round: number, count: number): readonly File[] {
  const lines: { readonly type: string; readonly line: string }[] = []
  for (let copy = 1; lines.length < count; copy++) {
    const start = (round * 100_000 + copy).toString(16).padStart(8, '0')
    for (const resource of samples.slice(0, count - lines.length)) {
      const line = JSON.stringify(resource).replaceAll(
        /[0-9a-f]{8}(-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})/g,
        `${start}$1`,
      )
      lines.push({ type: resource.resourceType, line })
    }
  }
  return [...Map.groupBy(lines, ({ type }) => type)].map(([type, list]) => ({
    type,
    text: list.map(({ line }) => line).join('\n'),
  }))
}

/** Resources a second, from the kick-off until the manifest is there. */
async function oneImport(base: string, token: string, files: readonly File[]): Promise<number> {
  const send = (url: string, body?: string, type = 'application/fhir+json') =>
    fetch(new URL(url, base), {
      method: body === undefined ? 'GET' : 'POST',
      headers: { Authorization: `Bearer ${token}`, 'Content-Type': type },
      ...(body === undefined ? {} : { body }),
    })
  const parameter: unknown[] = []
  for (const { type, text } of files) {
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
      const seconds = (performance.now() - began) / 1000
      return (await created(answer)) / seconds
    }
    if (answer.status !== 202 && answer.status !== 429)
      throw new Error(`The import answered ${answer.status}`)
    await delay(POLL_MS)
  }
}

async function created(answer: Response): Promise<number> {
  const { output, error } = (await answer.json()) as {
    output: { created: number }[]
    error: unknown[]
  }
  if (error.length > 0) throw new Error('Lines were refused')
  return output.reduce((sum, part) => sum + part.created, 0)
}
