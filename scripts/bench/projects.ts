/** Bots of many projects: rare calls, a thousand waiting callers, a second worker, and the start of a worker. */
import { setTimeout as delay } from 'node:timers/promises'
import type { Service } from '../service.ts'
import { compareP99, type Figure, type Load, openWire, type Request } from './load.ts'
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

/** The bound is the clock: the possible call rate or call duration. */
export async function crowds(stage: Stage, seconds: number): Promise<readonly Figure[]> {
  const large = await stage.start('worker', { WORKER_MEMORY_MB: MEMORY_MB })
  const echoes = await openCallers(stage, PROJECTS)
  const shared = { url: 'urn:botica:bot-concurrent', valueBoolean: true }
  const together = await deployBot(stage, WAIT, [shared])
  const alone = await deployBot(stage, WAIT)
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

async function deployBot(stage: Stage, body: string, extension?: readonly object[]): Promise<Bot> {
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

const ROLL_PROJECTS = 50
const EVERY_MS = 1000
/** Rounds before and after the start. */
const WARM_ROUNDS = 5
const ROUNDS = 10
const LIMIT_MS = 1000
/** `WORKER_MEMORY_MB`: one that has room for every project, and that of a small dyno. */
const MEMORIES = ['1024', '512']

/**
 * The first calls after a worker's start, with bots that are each called once a second: after a roll (the old worker
 * gets SIGTERM when the new one takes runs) and after a crash, from the moment when it takes runs.
 */
export async function roll(stage: Stage): Promise<readonly Figure[]> {
  const callers = await openCallers(stage, ROLL_PROJECTS, ROUNDS)
  const callAll = (rounds: number) => callInTurn(callers, rounds, EVERY_MS)
  const figures: Figure[] = []
  for (const memory of MEMORIES) {
    const settings = { WORKER_MEMORY_MB: memory }
    const old = await stage.start('worker', settings)
    await callAll(WARM_ROUNDS)
    const fresh = await startReady(stage, settings)
    const [rolled] = await Promise.all([callAll(ROUNDS), old.stop()])
    figures.push(...toFigures(`a roll, ${memory} MB`, rolled))
    process.kill(fresh.pid, 'SIGKILL')
    await fresh.ended
    const last = await startReady(stage, settings)
    figures.push(...toFigures(`a crash, ${memory} MB`, await callAll(ROUNDS)))
    await last.stop()
  }
  for (const { close } of callers) close()
  return figures
}

/** Resolves when the new worker takes runs, whether or not others do. */
async function startReady(stage: Stage, settings: NodeJS.ProcessEnv): Promise<Service> {
  const { queues } = stage.services
  const others = new Set(await queues.workers())
  const service = await stage.start('worker', settings)
  while ((await queues.workers()).every((id) => others.has(id))) await delay(10)
  return service
}

function toFigures(after: string, [first = [], ...rest]: readonly number[][]): readonly Figure[] {
  const next = `the next ${ROUNDS - 1} calls after ${after}`
  return [
    compareP99(`first calls of ${ROLL_PROJECTS} projects after ${after}`, first, LIMIT_MS),
    compareP99(next, rest.flat(), LIMIT_MS),
  ]
}

interface Caller {
  /** Returns the duration in ms. */
  call(): Promise<number>
  close(): void
}

/** Opens projects with a bot that returns its input; `connections` bounds the concurrent calls of each. */
async function openCallers(
  stage: Stage,
  projects: number,
  connections = 1,
): Promise<readonly Caller[]> {
  const callers: Caller[] = []
  for (let n = 0; n < projects; n++) callers.push(await openCaller(stage, connections))
  return callers
}

async function openCaller(stage: Stage, connections: number): Promise<Caller> {
  const { token, deploy } = await stage.openProject()
  const path = await deploy('return event.input')
  const wire = await openWire(stage.baseUrl, connections, token, 'application/json')
  let connection = 0
  return {
    async call() {
      const sent = performance.now()
      connection = (connection + 1) % connections
      const status = await wire.send(connection, 'POST', path, '{}')
      if (status !== 200) throw new Error(`A project got ${status}`)
      return performance.now() - sent
    },
    close: () => wire.close(),
  }
}

/**
 * Calls each project once in `everyMs`, evenly over that time, whether or not the call before has ended; returns the
 * durations by round.
 */
async function callInTurn(
  callers: readonly Caller[],
  rounds: number,
  everyMs: number,
): Promise<readonly number[][]> {
  const began = performance.now()
  const call = async (caller: Caller, turn: number) => {
    await delay(Math.max(0, began + turn * everyMs - performance.now()))
    return await caller.call()
  }
  const inRound = (round: number) =>
    callers.map((caller, n) => call(caller, round + n / callers.length))
  return await Promise.all(Array.from({ length: rounds }, (_, n) => Promise.all(inRound(n))))
}
