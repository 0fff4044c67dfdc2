/**
 * The first calls after a worker's start, with bots of 50 projects that are each called once a second: after a roll (the
 * old worker gets SIGTERM when the new one takes runs) and after a crash, from the moment when it takes runs.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Service } from '../service.ts'
import { compareP99, type Figure, openWire } from './load.ts'
import type { Stage } from './stage.ts'

const PROJECTS = 50
const EVERY_MS = 1000
/** Rounds before and after the start. */
const WARM_ROUNDS = 5
const ROUNDS = 10
const LIMIT_MS = 1000
/** `WORKER_MEMORY_MB`: one that has room for every project, and that of a small dyno. */
const MEMORIES = ['1024', '512']

export async function roll(stage: Stage): Promise<readonly Figure[]> {
  const callers: Caller[] = []
  for (let n = 0; n < PROJECTS; n++) callers.push(await openCaller(stage))
  const figures: Figure[] = []
  for (const memory of MEMORIES) {
    const settings = { WORKER_MEMORY_MB: memory }
    const old = await stage.start('worker', settings)
    await callAll(callers, WARM_ROUNDS)
    const fresh = await startReady(stage, settings)
    const [rolled] = await Promise.all([callAll(callers, ROUNDS), old.stop()])
    figures.push(...toFigures(`a roll, ${memory} MB`, rolled))
    process.kill(fresh.pid, 'SIGKILL')
    await fresh.ended
    const last = await startReady(stage, settings)
    figures.push(...toFigures(`a crash, ${memory} MB`, await callAll(callers, ROUNDS)))
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

interface Caller {
  /** Returns the duration in ms. */
  call(): Promise<number>
  close(): void
}

async function openCaller(stage: Stage): Promise<Caller> {
  const { token, deploy } = await stage.openProject()
  const path = await deploy('return event.input')
  const wire = await openWire(stage.baseUrl, ROUNDS, token, 'application/json')
  let connection = 0
  return {
    async call() {
      const sent = performance.now()
      connection = (connection + 1) % ROUNDS
      const status = await wire.send(connection, 'POST', path, '{}')
      if (status !== 200) throw new Error(`A project got ${status}`)
      return performance.now() - sent
    },
    close: () => wire.close(),
  }
}

/** Calls each project once a second, whether or not the call before has ended; returns the durations by round. */
async function callAll(callers: readonly Caller[], rounds: number): Promise<readonly number[][]> {
  const times = Array.from({ length: rounds }, (): number[] => [])
  await Promise.all(
    callers.map(async ({ call }, n) => {
      await delay((n * EVERY_MS) / callers.length)
      const calls: Promise<unknown>[] = []
      for (const round of times) {
        calls.push(call().then((ms) => round.push(ms)))
        await delay(EVERY_MS)
      }
      await Promise.all(calls)
    }),
  )
  return times
}

function toFigures(after: string, [first = [], ...rest]: readonly number[][]): readonly Figure[] {
  const next = `the next ${ROUNDS - 1} calls after ${after}`
  return [
    compareP99(`first calls of ${PROJECTS} projects after ${after}`, first, LIMIT_MS),
    compareP99(next, rest.flat(), LIMIT_MS),
  ]
}
