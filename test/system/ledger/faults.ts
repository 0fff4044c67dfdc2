/** Faults by target; faults of different lanes overlap. */
import { globSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { freePort } from '../../../scripts/service.ts'
import type { Random } from '../../fixtures/policy/oracle.ts'
import { type Cluster, type Running, said } from '../../fixtures/services/cluster.ts'
import { moveToSmallDisk } from './small-disk.ts'

interface Teardown {
  teardown(end: () => Promise<void> | void): void
}

type ByName = Readonly<Record<string, () => Promise<void>>>

export interface Lane {
  readonly faults: ByName
  readonly calmMs: number
}

interface Faults {
  /** Address of a second web process, which is killed and frozen. */
  readonly address: string
  readonly lanes: readonly Lane[]
}

const FREEZE_MS = { least: 1000, more: 3000 }
const LONG_FREEZE_MS = 12_000
const LONG_FREEZES = 8
const CALM_MS = { process: 700, store: 4000 }
const STARTS = 20
const WORKERS = 2
const ROOMY_MB = 900
const [library] = globSync('/usr/lib/*/faketime/libfaketime.so.1')
const OTHER_TIME = {
  LD_PRELOAD: library ?? '',
  FAKETIME: '+600s',
  FAKETIME_DONT_FAKE_MONOTONIC: '1',
}

/** Starts the web process and two workers for the faults; resolves when they are ready. */
export async function openFaults(t: Teardown, cluster: Cluster, random: Random): Promise<Faults> {
  const freezing = () =>
    delay(random(LONG_FREEZES) === 0 ? LONG_FREEZE_MS : FREEZE_MS.least + random(FREEZE_MS.more))
  const port = await freePort()
  const settings = { PORT: String(port), RATE_LIMIT_PER_MINUTE: '0' }
  const web = await openProcess(freezing, async () => serving(cluster.run('server', settings)))
  const workers: ByName[] = []
  for (let n = 0; n < WORKERS; n++) {
    const worker = await openProcess(freezing, () => cluster.startWorker())
    workers.push({
      'worker killed': () => worker.restart(),
      'worker frozen': worker.freeze,
      ...(library === undefined
        ? {}
        : {
            'worker of another time': () =>
              worker.restart(async () => working(cluster.run('worker', OTHER_TIME))),
          }),
    })
  }
  return {
    address: `http://127.0.0.1:${port}/`,
    lanes: [
      ...[{ 'web killed': () => web.restart(), 'web frozen': web.freeze }, ...workers].map(
        (faults) => ({ faults, calmMs: CALM_MS.process }),
      ),
      { faults: redisFaults(t, cluster, random, freezing), calmMs: CALM_MS.store },
      { faults: await postgresFaults(t, cluster, random, freezing), calmMs: CALM_MS.store },
    ],
  }
}

function redisFaults(
  t: Teardown,
  { redis }: Cluster,
  random: Random,
  freezing: () => Promise<void>,
): ByName {
  const client = new Redis(redis.url, { maxRetriesPerRequest: null })
  client.on('error', () => undefined)
  t.teardown(() => client.disconnect())
  return {
    async 'Redis emptied'() {
      await client.flushall()
    },
    'Redis killed': () => killed(redis, random),
    'Redis frozen': () => frozen(redis, freezing),
  }
}

async function postgresFaults(
  t: Teardown,
  { postgres }: Cluster,
  random: Random,
  freezing: () => Promise<void>,
): Promise<ByName> {
  const disk = await moveToSmallDisk(t, postgres.url, ROOMY_MB)
  return {
    'PostgreSQL killed': () => killed(postgres, random),
    'PostgreSQL frozen': () => frozen(postgres, freezing),
    async 'disk full'() {
      await disk.fill()
      await freezing()
      await disk.resize(ROOMY_MB)
    },
  }
}

async function killed(store: Cluster['redis'], random: Random): Promise<void> {
  await store.kill()
  await delay(random(1000))
  await store.start()
}

async function frozen(store: Cluster['redis'], freezing: () => Promise<void>): Promise<void> {
  store.silence()
  await freezing()
  store.resume()
}

interface Mortal {
  /** Kills the process and starts it again, with `another` if given. */
  restart(another?: () => Promise<Running>): Promise<void>
  freeze(): Promise<void>
}

async function openProcess(
  freezing: () => Promise<void>,
  start: () => Promise<Running>,
): Promise<Mortal> {
  let current = await start()
  return {
    async restart(another = start) {
      current.child.kill('SIGKILL')
      await current.ended
      current = await started(another)
    },
    async freeze() {
      const { child } = current
      child.kill('SIGSTOP')
      await freezing()
      child.kill('SIGCONT')
    },
  }
}

/** Starts a process again if it exits because a store is unavailable, as a platform does. */
async function started(start: () => Promise<Running>): Promise<Running> {
  for (let n = 0; ; n++) {
    try {
      return await start()
    } catch (error) {
      if (n === STARTS) throw error
      await delay(500)
    }
  }
}

async function serving(web: Running): Promise<Running> {
  await said(web, '"listening"')
  return web
}

async function working(worker: Running): Promise<Running> {
  await said(worker, '"taking jobs"')
  return worker
}
