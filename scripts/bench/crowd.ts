/** How long 10,000 waiting runs of one project delay single runs of another. */
import { setTimeout as delay } from 'node:timers/promises'
import type { Figure } from '../bench.ts'
import { deployBots } from './deployed.ts'
import { measure, median, openWire } from './load.ts'
import type { Stage } from './stage.ts'

const CROWD = 9500
const CROWD_MS = 20
const CALLERS = 200
const SINGLES = 15
/** Answers the time of its start and how long it took. */
const BUSY = `exports.handler = async (medplum, { input }) => {
  const from = Date.now()
  while (Date.now() < from + input.ms);
  return { from, ms: Date.now() - from }
}`

export async function crowdFigures(stage: Stage, baseUrl: string): Promise<readonly Figure[]> {
  const crowd = await deployBots(stage.env, { busy: BUSY })
  const other = await deployBots(stage.env, { busy: BUSY })
  const body = JSON.stringify({ ms: CROWD_MS })
  const url = `/fhir/R4/Bot/${crowd.ids.busy}/$execute`
  const later = 'application/json\r\nPrefer: respond-async'
  const async = await openWire(baseUrl, CALLERS, crowd.token, later)
  const sync = await openWire(baseUrl, CALLERS, crowd.token, 'application/json')
  let accepted = 0
  const queued = async () => {
    const depths = Object.values(await stage.services.queues.depths())
    const count = (name: string) => depths.reduce((sum, states) => sum + (states[name] ?? 0), 0)
    return count('waiting') + count('prioritized') + count('delayed')
  }
  await Promise.all(
    Array.from({ length: CALLERS }, async (_, caller) => {
      while (accepted++ < CROWD) await async.send(caller, 'POST', url, body)
    }),
  )
  async.close()
  const waiting = measure(CALLERS, SINGLES, async (caller) => {
    const { status } = await sync.send(caller, 'POST', url, body)
    return status < 500
  })
  await delay(500)
  const inLine = await queued()
  const ask = () => execute(baseUrl, other)
  const delays: number[] = []
  const lengths: number[] = []
  for (let n = 0; n < SINGLES; n++) {
    const askedAt = Date.now()
    const { from, ms } = await ask()
    delays.push(from - askedAt)
    lengths.push(ms)
    await delay(400)
  }
  await waiting
  sync.close()
  return [
    {
      what: `delay of a run behind ${inLine} of another project`,
      ours: `p50 ${median(delays)} ms, most ${Math.max(...delays)} ms`,
      limit: `a run takes ${median(lengths)} ms`,
      ratio: '',
      required: '<= one run + 50 ms',
    },
  ]
}

async function execute(
  baseUrl: string,
  { token, ids }: { readonly token: string; readonly ids: { readonly busy: string } },
): Promise<{ from: number; ms: number }> {
  const answer = await fetch(`${baseUrl}fhir/R4/Bot/${ids.busy}/$execute`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
    body: JSON.stringify({ ms: CROWD_MS }),
  })
  if (!answer.ok) throw new Error(`A single run was answered ${answer.status}`)
  return (await answer.json()) as { from: number; ms: number }
}
