/**
 * Bots of many projects called occasionally, a thousand waiting callers, and a second worker. The bound is the clock:
 * the possible call rate or call duration.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { compareP99, type Figure, type Load, measure, openWire } from './load.ts'
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
  const echoes: Bot[] = []
  for (let n = 0; n < PROJECTS; n++) echoes.push(await aBot(stage, 'return event.input'))
  const shared = { url: 'urn:botica:bot-concurrent', valueBoolean: true }
  const together = await aBot(stage, WAIT, [shared])
  const alone = await aBot(stage, WAIT)
  const crowd = async ({ url, token }: Bot) => {
    const wire = await openWire(stage.baseUrl, CALLERS, token, 'application/json')
    const call = async (caller: number) => (await wire.send(caller, 'POST', url, '{}')) === 200
    await measure(CALLERS, WARM_UP_S, call)
    return await measure(CALLERS, seconds, call).finally(() => wire.close())
  }
  const spread = (what: string, bots: readonly Bot[], overMs: number, limitMs: number) =>
    callSpread(stage.baseUrl, bots, overMs).then((times) => compareP99(what, times, limitMs))
  const figures = [
    await spread(`${COLD} cold projects within 5 s`, echoes.slice(0, COLD), 5000, 5000),
    await spread(`${PROJECTS} projects once within 10 s`, echoes, 10_000, 500),
    await spread(`${PROJECTS} projects once more`, echoes, 10_000, 500),
    many(`${CALLERS} callers of bot-concurrent`, await crowd(together)),
    many(`${CALLERS} callers with own isolates`, await crowd(alone)),
  ]
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

/** Calls each bot once, evenly over the time; returns durations in ms. */
async function callSpread(baseUrl: string, bots: readonly Bot[], overMs: number) {
  return await Promise.all(
    bots.map(async ({ url, token }, n) => {
      const wire = await openWire(baseUrl, 1, token, 'application/json')
      await delay((n * overMs) / bots.length)
      const sent = performance.now()
      const status = await wire.send(0, 'POST', url, '{}').finally(() => wire.close())
      if (status !== 200) throw new Error(`A project got ${status}`)
      return performance.now() - sent
    }),
  )
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
