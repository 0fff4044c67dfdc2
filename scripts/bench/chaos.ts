/**
 * Workers are killed at random every 2 s under load, for twenty times the seconds given: the ledger of
 * what was accepted. `lost` must be 0.
 */
import type { ChildProcess } from 'node:child_process'
import type { Figure } from '../bench.ts'
import { freePort } from '../service.ts'
import { CHAOS_BOT, runChaos } from './chaos-run.ts'
import { startHeardWorker, startWeb, stopChild, untilReady } from './children.ts'
import { deployBots } from './deployed.ts'
import { openStage } from './stage.ts'

const ROUNDS = 20

export async function chaos(seconds: number): Promise<readonly Figure[]> {
  const port = await freePort()
  const baseUrl = `http://127.0.0.1:${port}/`
  const stage = await openStage({ PORT: String(port), BASE_URL: baseUrl, LOG_LEVEL: 'fatal' })
  const web = startWeb(stage.env)
  const workers: ChildProcess[] = []
  try {
    await untilReady(baseUrl, false)
    const { token, ids } = await deployBots(stage.env, { chaos: CHAOS_BOT })
    const ledger = await runChaos({
      baseUrl,
      token,
      botId: ids.chaos,
      seconds: seconds * ROUNDS,
      killEveryMs: 2000,
      workers: 3,
      callers: 8,
      async startWorker() {
        const { child, ready } = startHeardWorker(stage.env)
        workers.push(child)
        await ready
        return child
      },
    })
    const { kills, accepted, completed, failed, cancelled, lost, sync, slowestSyncMs } = ledger
    const line = (what: string, ours: string, required = ''): Figure => ({
      what,
      ours,
      limit: '',
      ratio: '',
      required,
    })
    return [
      line('workers killed', String(kills)),
      line('accepted', String(accepted), '= the next three'),
      line('completed', String(completed)),
      line('failed', String(failed)),
      line('cancelled', String(cancelled)),
      line('lost', String(lost), '0'),
      line('callers who waited', JSON.stringify(sync)),
      line('slowest of them', `${slowestSyncMs} ms`, '<= 25 s and the answer'),
    ]
  } finally {
    await Promise.all([...workers, web].map(stopChild))
    await stage.close()
  }
}
