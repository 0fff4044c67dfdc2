/**
 * Bots of many projects called occasionally, a thousand waiting callers, and a second worker. The bound is the clock:
 * the possible call rate or call duration.
 */
import { compareP99, type Figure, type Load, openWire, type Request } from './load.ts'
import { type Caller, callInTurn, openCallers } from './projects.ts'
import type { Stage } from './stage.ts'

const PROJECTS = 300
const COLD = 50
const CALLERS = 1000
const WAIT_MS = 200
const WARM_UP_S = 4
const MEMORY_MB = '4300'
/** Fits about a hundred runs, which bounds one worker. */
const SMALL_MB = '512'
const WAIT = `await new Promise((end) => setTimeout(end, ${WAIT_MS})); return event.input`

interface Bot {
  readonly url: string
  readonly token: string
}

export async function crowds(stage: Stage, seconds: number): Promise<readonly Figure[]> {
  const large = await stage.start('worker', { WORKER_MEMORY_MB: MEMORY_MB })
  const echoes = await openCallers(stage, PROJECTS)
  const shared = { url: 'urn:botica:bot-concurrent', valueBoolean: true }
  const together = await aBot(stage, WAIT, [shared])
  const alone = await aBot(stage, WAIT)
  const crowd = async ({ url, token }: Bot) => {
    const wire = await openWire(stage.baseUrl, CALLERS, token, 'application/json')
    const request = (): Request => ['POST', url, '{}']
    await wire.load(WARM_UP_S, request)
    return await wire.load(seconds, request).finally(() => wire.close())
  }
  const spread = (what: string, callers: readonly Caller[], overMs: number, limitMs: number) =>
    callInTurn(callers, 1, overMs).then((times) => compareP99(what, times.flat(), limitMs))
  const figures = [
    await spread(`${COLD} cold projects within 5 s`, echoes.slice(0, COLD), 5000, 5000),
    await spread(`${PROJECTS} projects once within 10 s`, echoes, 10_000, 500),
    await spread(`${PROJECTS} projects once more`, echoes, 10_000, 500),
    many(`${CALLERS} callers of bot-concurrent`, await crowd(together)),
    many(`${CALLERS} callers with own isolates`, await crowd(alone)),
  ]
  for (const { close } of echoes) close()
  await large.stop()
  await stage.start('worker', { WORKER_MEMORY_MB: SMALL_MB })
  const one = await crowd(alone)
  await stage.start('worker', { WORKER_MEMORY_MB: SMALL_MB })
  const two = await crowd(alone)
  const ratio = (two.perSecond / one.perSecond).toFixed(2)
  const what = `two workers of ${SMALL_MB} MB to one`
  return [...figures, { what, ours: rate(two), limit: rate(one), ratio, required: '>= 1.8' }]
}

async function aBot(stage: Stage, body: string, extension?: readonly object[]): Promise<Bot> {
  const { token, deploy } = await stage.openProject()
  return { url: await deploy(body, extension), token }
}

function many(what: string, load: Load): Figure {
  const limit = (CALLERS * 1000) / WAIT_MS
  const ours = `${rate(load)}, p99 ${load.p99Ms.toFixed(0)} ms`
  const ratio = (load.perSecond / limit).toFixed(2)
  return { what, ours, limit: `${limit}/s`, ratio, required: 'no failure' }
}

function rate({ perSecond }: Load): string {
  return `${Math.round(perSecond)}/s`
}
