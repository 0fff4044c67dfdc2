/** Imports helpers of the launcher, to start processes on free ports. */
import t from 'tap'
import { freePort } from '../../scripts/service.ts'
import { openCluster } from '../fixtures/services/cluster.ts'

const WAITS = JSON.stringify({ startMs: 3000 })
const NOWHERE = `127.0.0.1:${await freePort()}`

t.setTimeout(400_000)
const cluster = await openCluster(t)
const { redis, postgres } = cluster

const wrong = (url: string, part: 'password' | 'pathname', value: string) => {
  const changed = new URL(url)
  changed[part] = value
  return changed.href
}
const refusal = (what: string) =>
  new RegExp(`^${what} refuses the connection: .*; check (DATABASE|REDIS)_URL$`, 'm')
const refusals: readonly (readonly [Record<string, string>, RegExp])[] = [
  [{ DATABASE_URL: wrong(postgres.url, 'password', 's3cret') }, refusal('PostgreSQL')],
  [{ DATABASE_URL: wrong(postgres.url, 'pathname', '/none') }, refusal('PostgreSQL')],
  [{ REDIS_URL: wrong(redis.url, 'password', 's3cret') }, refusal('Redis')],
  [{ REDIS_URL: wrong(redis.url, 'pathname', '/999') }, refusal('Redis')],
]
const refused = refusals.map(([settings], i) => cluster.run(i % 2 ? 'worker' : 'server', settings))
const hopeless = [
  cluster.run('server', { WAITS, DATABASE_URL: `postgres://botica:s3cret@${NOWHERE}/botica` }),
  cluster.run('worker', { WAITS, REDIS_URL: `redis://:s3cret@${NOWHERE}` }),
]

t.test(
  'exits with one sentence if PostgreSQL or Redis rejects it or stays unavailable',
  async (t) => {
    for (const [i, { ended, said }] of refused.entries()) {
      t.equal(await ended, 1)
      t.match(said(), refusals[i]?.[1])
      t.notMatch(said(), /s3cret|\n\s+at /)
    }
    for (const { ended, said } of hopeless) {
      t.equal(await ended, 1)
      t.match(said(), /(PostgreSQL|Redis) does not answer; check (DATABASE|REDIS)_URL\n$/)
      t.notMatch(said(), /s3cret|\n\s+at /)
      t.ok(said().split('\n').length < 40)
    }
  },
)
