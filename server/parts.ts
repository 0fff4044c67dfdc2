/** The parts that a web process stands on are looked at when somebody asks. */

import { waits } from '../shared/config/waits.ts'
import type { Services } from '../shared/services.ts'

export const PARTS = ['postgres', 'redis', 'storage', 'workers', 'clocks'] as const
type Part = (typeof PARTS)[number]

interface Check {
  readonly ok: boolean
  readonly ms: number
}

export interface Checks extends Readonly<Record<Part, Check>> {
  /** Why this process is not well; undefined when it is. */
  readonly reason: string | undefined
}

export interface Parts {
  check(): Promise<Checks>
}

const CHECK_MS = 2000

/** Requests are answered without these two: only their lasting absence counts. */
const LASTING = {
  storage: 'The storage takes nothing',
  workers: 'No worker is alive',
} as const

export function openParts(services: Services): Parts {
  const missingSince = new Map<Part, number>()
  return {
    async check() {
      const checks = await checkParts(services)
      for (const part of PARTS) {
        if (checks[part].ok) missingSince.delete(part)
        else if (!missingSince.has(part)) missingSince.set(part, performance.now())
      }
      return { ...checks, reason: reasonOf(checks, services, missingSince) }
    },
  }
}

function reasonOf(
  { postgres, redis }: Readonly<Record<Part, Check>>,
  { database }: Services,
  missingSince: ReadonlyMap<Part, number>,
): string | undefined {
  if (!database.hasRoom) return 'PostgreSQL has no room left'
  if (!postgres.ok) return 'PostgreSQL is away'
  if (!redis.ok) return 'Redis is away'
  for (const part of ['storage', 'workers'] as const) {
    const ms = performance.now() - (missingSince.get(part) ?? Number.POSITIVE_INFINITY)
    if (ms > waits.outageMs) return `${LASTING[part]}, since ${Math.round(ms / 1000)} s`
  }
  return undefined
}

async function checkParts(services: Services): Promise<Readonly<Record<Part, Check>>> {
  const { database, queues, storage: files } = services
  const [postgres, redis, storage, workers, clocks] = await Promise.all([
    check(async () => (await database.ping()) >= 0 && database.hasRoom),
    check(async () => (await queues.ping()) >= 0),
    check(async () => {
      await files.check()
      return true
    }),
    check(async () => (await queues.workers()).length > 0),
    check(async () => (await queues.workersOffTime()).length === 0),
  ])
  return { postgres, redis, storage, workers, clocks }
}

/** A check that hangs is a failed one. */
async function check(ask: () => Promise<boolean>): Promise<Check> {
  const startedAt = performance.now()
  const timer = Promise.withResolvers<boolean>()
  const timeout = setTimeout(timer.resolve, CHECK_MS, false)
  const asked = ask().catch(() => false)
  const ok = await Promise.race([asked, timer.promise])
  clearTimeout(timeout)
  return { ok, ms: Math.round((performance.now() - startedAt) * 10) / 10 }
}
