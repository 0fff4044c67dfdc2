/**
 * `$execute` by shape of bot (nothing, 5 ms of processor, read and create, 200 ms of waiting), by number of
 * callers and by workers, beside the raw BullMQ round trip and a run in a bare executor; then how much
 * memory 1,000 waiting runs hold, and how long a crowd of 10,000 delays another project's run. AuditEvents
 * are for failures only.
 */
import type { ChildProcess } from 'node:child_process'
import { createHash } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { createLogger } from '../../shared/log.ts'
import { openExecutors } from '../../worker/bots/executors/executors.ts'
import type { Figure } from '../bench.ts'
import { freePort } from '../service.ts'
import { startWeb, startWorker, stopChild, untilReady } from './children.ts'
import { familyMb } from './cpu.ts'
import { crowdFigures } from './crowd.ts'
import { deployBots } from './deployed.ts'
import { type Load, measure, openWire } from './load.ts'
import { openRawQueue } from './raw-queue.ts'
import { openStage, type Stage } from './stage.ts'

const SHAPES = {
  trivial: 'return event.input',
  '5 ms CPU': 'const from = Date.now(); while (Date.now() < from + 5); return 1',
  'read + create': `const { id } = await medplum.createResource({ resourceType: 'Basic', code: { text: 'x' } })
    return await medplum.readResource('Basic', id)`,
  '200 ms wait': 'await new Promise((resolve) => setTimeout(resolve, 200)); return 1',
  '3 s wait': 'await new Promise((resolve) => setTimeout(resolve, 3000)); return 1',
} as const
type Shape = keyof typeof SHAPES
const NAMES = Object.keys(SHAPES) as Shape[] // of the constant above
/** Waits so long that the processor limits nothing, on a busy machine either: workers alone. */
const LONG = '3 s wait'
const SHORT = NAMES.filter((name) => name !== LONG)
const CALLERS = [1, 16, 64, 256]
const MANY = 256
const WAITING = 1000
const WARM_UP_S = 4
/** The warm-up of the first shape: V8 needs some ten thousand runs before the code of a process is what it stays. */
const FIRST_WARM_UP_S = 12
const ROUNDS = 5
const TICK_MS = 10
/** Until as many runs are under way as ever, and for how long their ends are counted. */
const RAMP_MS = 6000
const STEADY_MS = 6000

const handler = (body: string) => `exports.handler = async (medplum, event) => { ${body} }`
const input = JSON.stringify({ text: 'x'.repeat(190) })
const show = ({ perSecond, p50Ms, p99Ms }: Load) =>
  `${Math.round(perSecond)}/s, p50 ${p50Ms.toFixed(1)}, p99 ${p99Ms.toFixed(1)} ms`

export async function bots(seconds: number): Promise<readonly Figure[]> {
  const port = await freePort()
  const baseUrl = `http://127.0.0.1:${port}/`
  const stage = await openStage({ PORT: String(port), BASE_URL: baseUrl })
  const children = [startWeb(stage.env), startWorker(stage.env)]
  const [, worker] = children
  try {
    await untilReady(baseUrl, true)
    const code = Object.fromEntries(NAMES.map((name) => [name, handler(SHAPES[name])]))
    // One entry a name, from the line above.
    const { token, ids } = await deployBots(stage.env, code as Record<Shape, string>)
    const ask: Ask = async (shape, callers, forSeconds, onEnd) => {
      const wire = await openWire(baseUrl, callers, token, 'application/json')
      const url = `/fhir/R4/Bot/${ids[shape]}/$execute`
      const load = await measure(callers, forSeconds, async (caller) => {
        const { status } = await wire.send(caller, 'POST', url, input)
        onEnd?.()
        return status === 200
      })
      wire.close()
      if (load.failed > 0) throw new Error(`${load.failed} runs of ${shape} failed`)
      return load
    }
    await ask('trivial', 64, FIRST_WARM_UP_S)
    const figures: Figure[] = [...(await bareFigures(ask, seconds))]
    const raw = await rawLoads(stage, seconds)
    const alone = new Map<string, Load>()
    await lagOf(baseUrl)
    for (const shape of SHORT) {
      await ask(shape, 64, WARM_UP_S)
      for (const callers of CALLERS) {
        const load = await ask(shape, callers, seconds)
        alone.set(`${shape} ${callers}`, load)
        figures.push(beside(`${shape}, ${callers} callers`, load, raw.get(callers)))
      }
    }
    figures.push(await lagFigure(baseUrl), await memoryFigure(ask, worker))
    const one = await steadyRate(ask)
    children.push(startWorker(stage.env))
    await delay(WARM_UP_S * 1000)
    const two = await steadyRate(ask)
    figures.push({
      what: `${LONG}, ${MANY} callers, two workers : one`,
      ours: `${two.toFixed(1)}/s`,
      limit: `${one.toFixed(1)}/s`,
      ratio: (two / one).toFixed(2),
      required: '>= 1.8',
    })
    for (const shape of SHORT) {
      const what = `${shape}, ${MANY} callers, two workers : one`
      figures.push(beside(what, await ask(shape, MANY, seconds), alone.get(`${shape} ${MANY}`)))
    }
    return [...figures, ...(await crowdFigures(stage, baseUrl))]
  } finally {
    await Promise.all(children.map(stopChild))
    await stage.close()
  }
}

type Ask = (shape: Shape, callers: number, seconds: number, onEnd?: () => void) => Promise<Load>

/** Runs of the long wait that end in a second, once all places are taken. */
async function steadyRate(ask: Ask): Promise<number> {
  const from = Date.now() + RAMP_MS
  let ended = 0
  await ask(LONG, MANY, (RAMP_MS + STEADY_MS) / 1000, () => {
    if (Date.now() >= from && Date.now() < from + STEADY_MS) ended += 1
  })
  return ended / (STEADY_MS / 1000)
}

function beside(what: string, ours: Load, limit: Load | undefined, required = ''): Figure {
  const ratio = limit === undefined ? '' : (ours.perSecond / limit.perSecond).toFixed(2)
  return { what, ours: show(ours), limit: limit ? show(limit) : '', ratio, required }
}

async function rawLoads(stage: Stage, seconds: number): Promise<ReadonlyMap<number, Load>> {
  const raw = await openRawQueue(stage.config.redisUrl)
  const loads = new Map<number, Load>()
  for (const callers of CALLERS) {
    loads.set(callers, await measure(callers, seconds, () => raw.roundTrip(input)))
  }
  await raw.close()
  return loads
}

/** The same run by a warm executor of this process: no HTTP, no queue, no worker. In alternating rounds. */
async function bareFigures(ask: Ask, seconds: number): Promise<readonly Figure[]> {
  const log = createLogger('silent', 'script')
  const executors = await openExecutors({ log, maxExecutors: 1, spares: 1, isolatesPerBot: 4 })
  const code = handler(SHAPES.trivial)
  const run = {
    runId: 'bare',
    projectId: 'bench',
    botKey: 'bare',
    asker: 'bench',
    code,
    codeHash: createHash('sha256').update(code).digest('hex'),
    format: 'commonjs',
    limits: { wallMs: 9000, cpuMs: 9000, memoryMb: 128, resultBytes: 1e6, logBytes: 1e5 },
    event: JSON.stringify({ context: { baseUrl: 'http://x/' } }),
    inputKind: 'json',
    input,
  } as const
  const { signal } = new AbortController()
  const rounds: { bare: Load; whole: Load }[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const bare = await measure(1, seconds, async () => {
      const { status } = await executors.run(run, async () => '', signal)
      return status === 'ok'
    })
    rounds.push({ bare, whole: await ask('trivial', 1, seconds) })
  }
  await executors.close()
  const above = ({ bare, whole }: (typeof rounds)[number]) => whole.p50Ms - bare.p50Ms
  const middle = rounds.toSorted((a, b) => above(a) - above(b))[Math.floor(ROUNDS / 2)]
  if (middle === undefined) throw new Error('There was no round')
  const ratio = `+${above(middle).toFixed(2)} ms`
  const what = 'trivial, 1 caller, p50 above a bare executor'
  const limit = show(middle.bare)
  return [{ what, ours: show(middle.whole), limit, ratio, required: '<= 4 ms' }]
}

/** 99th percentile of the web process since the last look, without the tick that it is measured by. */
async function lagOf(baseUrl: string): Promise<number> {
  const text = await (await fetch(`${baseUrl}metrics`)).text()
  const [, seconds = 0] = /^nodejs_eventloop_lag_p99_seconds ([\d.e-]+)/m.exec(text) ?? []
  return Math.max(0, Number(seconds) * 1000 - TICK_MS)
}

async function lagFigure(baseUrl: string): Promise<Figure> {
  const ours = `${(await lagOf(baseUrl)).toFixed(1)} ms`
  return { what: 'event loop of web, p99', ours, limit: '', ratio: '', required: '<= 20 ms' }
}

async function memoryFigure(ask: Ask, worker: ChildProcess | undefined): Promise<Figure> {
  const pid = worker?.pid ?? 0
  const before = familyMb(pid)
  let most = 0
  const timer = setInterval(() => {
    most = Math.max(most, familyMb(pid))
  }, 250)
  const load = await ask('200 ms wait', WAITING, 5)
  clearInterval(timer)
  return {
    what: `memory of a worker, ${WAITING} runs of 200 ms at a time`,
    ours: `${Math.round(most)} MiB at ${Math.round(load.perSecond)}/s`,
    limit: `${Math.round(before)} MiB before`,
    ratio: '',
    required: '<= 600 MiB',
  }
}
