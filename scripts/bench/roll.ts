/**
 * The first calls after a worker's start, with bots of 50 projects that are each called once a second: after a roll (the
 * old worker gets SIGTERM when the new one takes runs) and after a crash, from the moment when it takes runs.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Service } from '../service.ts'
import { compareP99, type Figure } from './load.ts'
import { callInTurn, openCallers } from './projects.ts'
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
  const callers = await openCallers(stage, PROJECTS, ROUNDS)
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
    compareP99(`first calls of ${PROJECTS} projects after ${after}`, first, LIMIT_MS),
    compareP99(next, rest.flat(), LIMIT_MS),
  ]
}
