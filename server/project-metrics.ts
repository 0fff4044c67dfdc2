/** What each Project has waiting, for /metrics: its jobs in PostgreSQL and the runs of its bots in Redis. */
import { Gauge, type Registry } from 'prom-client'
import { queueDepths } from '../shared/jobs/upkeep/queue-depths.ts'
import { readAllLanes } from '../shared/platform/queue/stats.ts'
import type { Services } from '../shared/services.ts'

/** Those with the least are counted as one, so that the text stays short. */
const MOST_PROJECTS = 500
const OTHERS = 'other'

interface Depth {
  readonly queue: string
  readonly project: string
  readonly states: Readonly<Record<string, number>>
  readonly oldestSeconds: number
}

/** Bots count their runs as `flight`: waiting or running. */
export function watchProjects(
  registry: Registry,
  { database, redis }: Pick<Services, 'database' | 'redis'>,
): void {
  const registers = [registry]
  const oldest = new Gauge({
    name: 'queue_project_oldest_seconds',
    help: 'How long the longest waiting job of a Project waits',
    labelNames: ['queue', 'project'],
    registers,
  })
  new Gauge({
    name: 'queue_project_jobs',
    help: 'Jobs of a Project by queue and state',
    labelNames: ['queue', 'project', 'state'],
    registers,
    async collect() {
      const depths = await readDepths(database, redis).catch(() => [])
      this.reset()
      oldest.reset()
      for (const { queue, project, states, oldestSeconds } of shortened(depths)) {
        for (const [state, count] of Object.entries(states)) {
          if (count > 0) this.inc({ queue, project, state }, count)
        }
        if (oldestSeconds > 0) oldest.set({ queue, project }, oldestSeconds)
      }
    },
  })
}

async function readDepths(
  database: Services['database'],
  redis: Services['redis'],
): Promise<readonly Depth[]> {
  const [jobs, lanes] = await Promise.all([queueDepths(database), readAllLanes(redis)])
  return [
    ...jobs.map(({ queue, project, waiting, active, failed, oldestMs }) => ({
      queue,
      project,
      states: { waiting, active, failed },
      oldestSeconds: (oldestMs ?? 0) / 1000,
    })),
    ...lanes.map(({ queue, project, inFlight, oldestWaitingSeconds }) => ({
      queue,
      project,
      states: { flight: inFlight },
      oldestSeconds: oldestWaitingSeconds,
    })),
  ]
}

function shortened(depths: readonly Depth[]): readonly Depth[] {
  const sizes = new Map<string, number>()
  for (const { project, states } of depths) {
    const size = Object.values(states).reduce((sum, count) => sum + count, 0)
    sizes.set(project, (sizes.get(project) ?? 0) + size)
  }
  if (sizes.size <= MOST_PROJECTS) return depths
  const largest = [...sizes].toSorted(([, a], [, b]) => b - a).slice(0, MOST_PROJECTS)
  const named = new Set(largest.map(([project]) => project))
  return depths.map((depth) => (named.has(depth.project) ? depth : { ...depth, project: OTHERS }))
}
