/**
 * Callers of runs that end while their process reconnects to Redis. Imports the replies, to cut the connection
 * between two of them.
 */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { readConfig } from '../../../shared/core/config/config.ts'
import { createLogger } from '../../../shared/core/log.ts'
import type { ExecuteJob, ExecuteReply } from '../../../shared/queue/jobs.ts'
import { openReplies } from '../../../shared/queue/replies.ts'
import { openRuns } from '../../../shared/queue/runs.ts'
import { createBus } from '../../../shared/redis/bus.ts'
import { openRedis, untilReady } from '../../../shared/redis/redis.ts'
import { aJob } from '../../fixtures/bots/execute-job.ts'

const PATIENCE_MS = 60_000
/** Time for a worker to end a run when Redis lost its scripts. */
const AWHILE_MS = 100

const config = readConfig()
const log = createLogger('silent', 'script')
const redis = openRedis(config, 'request', log)
const subscriber = openRedis(config, 'subscribe', log)
await Promise.all([untilReady(redis, log), untilReady(subscriber, log)])
const bus = createBus(redis, subscriber)
const runs = await openRuns(config, bus, log)

/** Runs on a queue lookup of the job, which is lost by the time of the reply. */
let whenAsked: (job: ExecuteJob) => Promise<unknown> = async () => undefined
let job: ExecuteJob
const replies = await openReplies({
  redis,
  bus,
  log,
  has: async () => {
    await whenAsked(job)
    return false
  },
  withdraw: async () => undefined,
})
t.teardown(async () => {
  replies.close()
  await runs.close()
  redis.disconnect()
  subscriber.disconnect()
})

function awaited(): ExecuteJob {
  return aJob(randomUUID(), { waitUntil: Date.now() + PATIENCE_MS, reply: replies.channel })
}

const anAnswer = ({ runId }: ExecuteJob): ExecuteReply => ({
  runId,
  status: 'ok',
  kind: 'json',
  body: '1',
})
const finish = (job: ExecuteJob, ranMs: number) => runs.finish(job, anAnswer(job), { ranMs })
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

/** The worker that holds the job writes, then loses it. */
async function write(job: ExecuteJob): Promise<void> {
  await runs.markWrite(job, randomUUID())
}

/** Returns the reply to a new run whose process reconnects to Redis. */
async function replyAfterOutage(act: typeof whenAsked, hasWritten: boolean) {
  job = awaited()
  whenAsked = act
  if (hasWritten) await write(job)
  const { reply } = replies.wait(job, PATIENCE_MS, undefined)
  subscriber.disconnect(true)
  return reply
}

for (const [length, ranMs] of [
  ['short', 10],
  ['long', 5000],
] as const) {
  t.test(`returns the result of a ${length} run that ends during its lookup`, async (t) => {
    for (const hasWritten of [true, false]) {
      const reply = await replyAfterOutage((job) => finish(job, ranMs), hasWritten)
      t.same(reply, anAnswer(job))
    }
  })

  t.test(
    `returns the result of a ${length} run whose job is removed before its reply`,
    async (t) => {
      const later = async (job: ExecuteJob) => void pause(AWHILE_MS).then(() => finish(job, ranMs))
      for (const hasWritten of [true, false]) {
        t.same(await replyAfterOutage(later, hasWritten), anAnswer(job))
      }
    },
  )
}

t.test('returns interrupted for a run whose job Redis lost', async (t) => {
  for (const hasWritten of [true, false]) {
    const cut = await replyAfterOutage(async () => undefined, hasWritten)
    t.match(cut, { status: 'interrupted', kind: 'outcome', body: /Bot run interrupted/ })
  }
})

t.test('lets one of several attempts of a run write', async (t) => {
  const contested = awaited()
  t.equal(await runs.hasWritten(contested.runId), false)
  t.equal(await runs.markWrite(contested, 'second'), true)
  t.equal(await runs.markWrite(contested, 'first'), false)
  t.equal(await runs.markWrite(contested, 'second'), true)
  t.equal(await runs.hasWritten(contested.runId), true)
})

t.test('rejects writes of earlier attempts after a repeated attempt ended the run', async (t) => {
  const ended = awaited()
  await runs.finish(ended, anAnswer(ended), { ranMs: 10, attempt: 'second' })
  t.equal(await runs.markWrite(ended, 'first'), false)
})
