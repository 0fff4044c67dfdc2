/** How long 10,000 waiting runs of one project delay single runs of another. */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { actingAs } from '../../shared/bots/execute-bot.ts'
import type { Figure } from '../bench.ts'
import { type Deployed, deployBots } from './deployed.ts'
import { measure, median, openWire } from './load.ts'
import type { Stage } from './stage.ts'

const CROWD = 9500
const CROWD_MS = 20
const CALLERS = 200
const AT_ONCE = 100
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
  const sync = await openWire(baseUrl, CALLERS, crowd.token, 'application/json')
  const queued = async () => {
    const depths = Object.values(await stage.services.queues.depths())
    const count = (name: string) => depths.reduce((sum, states) => sum + (states[name] ?? 0), 0)
    return count('waiting') + count('prioritized') + count('delayed')
  }
  // The first run starts the executor and loads the code, which has nothing to do with the crowd.
  await execute(baseUrl, other)
  await queueMany(stage, crowd, body)
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

/** As if they had been accepted, without their AsyncJobs: those are not what is measured. */
async function queueMany(
  { services }: Stage,
  { ids, projectId }: Deployed<'busy'>,
  input: string,
): Promise<void> {
  const { principals, queues, repository } = services
  const session = await principals.forProfile(`Bot/${ids.busy}`)
  const context = await principals.project(projectId)
  if (session === undefined || context === undefined) {
    throw new Error('The bot has no membership')
  }
  const acting = actingAs(session.principal)
  const bot = await repository.read(systemPrincipal(context), 'Bot', ids.busy)
  const added = Date.now()
  for (let done = 0; done < CROWD; done += AT_ONCE) {
    const jobs = Array.from({ length: AT_ONCE }, () => ({
      runId: randomUUID(),
      projectId,
      botId: ids.busy,
      botProjectId: projectId,
      botVersion: bot.ver,
      ...acting,
      requester: undefined,
      contentType: 'application/json',
      inputKind: 'json' as const,
      input,
      headers: {},
      traceId: randomUUID(),
      requestId: randomUUID(),
      depth: 0,
      added,
      deadline: added + 3_600_000,
    }))
    await Promise.all(jobs.map((job) => queues.enqueue(job, async () => {})))
  }
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
