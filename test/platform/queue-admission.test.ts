import { randomUUID } from 'node:crypto'
import { Redis } from 'ioredis'
import t from 'tap'
import { readConfig } from '../../shared/config/config.ts'
import { createAdmission } from '../../shared/platform/queue/admission.ts'
import { keys } from '../../shared/platform/queue/scripts.ts'
import { aJob } from '../fixtures/bots/execute-job.ts'

const redis = new Redis(readConfig().redisUrl)
t.teardown(() => redis.disconnect())

t.test('runs of one turn are admitted together, each in its lane', async (t) => {
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
  const lanes = await Promise.allSettled(jobs.map((job) => admit('bots-async', job, true)))
  const answers = lanes.map((lane) =>
    lane.status === 'fulfilled' ? lane.value : lane.reason.status,
  )
  t.same(answers, [...Array(8).fill(0), ...Array(8).fill(1), ...Array(4).fill(2), 429, 429])
  t.equal(sent, 1)
  const flight = keys.flight('bots-async', projectId)
  t.same(
    (await redis.zrange(flight, '0', '-1')).sort(),
    jobs
      .slice(0, 20)
      .map(({ runId }) => runId)
      .sort(),
  )
  await redis.unlink(flight, keys.lane('bots-async', projectId))
})

t.test('a project with few runs left leaves its lane', async (t) => {
  const projectId = randomUUID()
  const flight = keys.flight('bots-async', projectId)
  const { admit } = createAdmission(redis, 20)
  const jobs = Array.from({ length: 9 }, () => aJob(projectId))
  await Promise.all(jobs.map((job) => admit('bots-async', job, true)))
  t.equal(await redis.get(keys.lane('bots-async', projectId)), '1')
  await redis.zrem(flight, ...jobs.slice(0, 7).map(({ runId }) => runId))
  t.equal(await admit('bots-async', aJob(projectId), true), 0)
  t.equal(await redis.exists(keys.lane('bots-async', projectId)), 0)
  await redis.unlink(flight)
})
