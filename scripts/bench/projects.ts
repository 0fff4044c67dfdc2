/** Calls of bots in many projects, each project in its turn. */
import { setTimeout as delay } from 'node:timers/promises'
import { openWire } from './load.ts'
import type { Stage } from './stage.ts'

export interface Caller {
  /** Returns the duration in ms. */
  call(): Promise<number>
  close(): void
}

/** Opens projects with a bot that returns its input; `connections` bounds the concurrent calls of each. */
export async function openCallers(
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
export async function callInTurn(
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
