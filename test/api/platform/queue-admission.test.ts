/** Imports the admission of jobs, whose counters no request can set. */
import { randomUUID } from 'node:crypto'
import { Redis } from 'ioredis'
import t from 'tap'
import { readConfig } from '../../../shared/core/config/config.ts'
import { createAdmission } from '../../../shared/queue/admission.ts'
import { keys } from '../../../shared/queue/jobs.ts'
import { aJob } from '../../fixtures/bots/execute-job.ts'

const redis = new Redis(readConfig().redisUrl)
t.teardown(() => redis.disconnect())

t.test('admits the runs of one turn by one command, each in its lane', async (t) => {
  const projectId = randomUUID()
  const jobs = Array.from({ length: 22 }, () => aJob(projectId))
  let sent = 0
  const counted = new Proxy(redis, {
    get(target, name) {
      if (name === 'evalsha') sent++
      const value: unknown = Reflect.get(target, name)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
  const { admit } = createAdmission(counted, 20)
  const admitted = jobs.map((job) => admit('bots-async', job, true))
  const counts = await Promise.allSettled(admitted.map(({ counted }) => counted))
  t.same(
    admitted.slice(0, 20).map(({ lane }) => lane),
    [...Array(8).fill(0), ...Array(8).fill(1), ...Array(4).fill(2)],
  )
  t.same(
    counts.map((count) => (count.status === 'rejected' ? count.reason.status : 'counted')),
    [...Array(20).fill('counted'), 429, 429],
  )
  t.equal(sent, 1)
  const flight = keys.flight('bots-async', projectId)
  t.same(
    (await redis.zrange(flight, '0', '-1')).sort(),
    jobs
      .slice(0, 20)
      .map(({ runId }) => runId)
      .sort(),
  )
  await redis.unlink(flight)
})

t.test('returns a project with few runs left to lane 0', async (t) => {
  const projectId = randomUUID()
  const flight = keys.flight('bots-async', projectId)
  const { admit } = createAdmission(redis, 20)
  const jobs = Array.from({ length: 9 }, () => aJob(projectId))
  const lanes = await Promise.all(
    jobs.map(async (job) => {
      const { lane, counted } = admit('bots-async', job, true)
      await counted
      return lane
    }),
  )
  t.equal(lanes.at(-1), 1)
  await redis.zrem(flight, ...jobs.slice(0, 8).map(({ runId }) => runId))
  await admit('bots-async', aJob(projectId), true).counted
  t.equal(admit('bots-async', aJob(projectId), true).lane, 0)
  await redis.unlink(flight)
})
