/** What the bots of a Project do and did, for its administrators (bots.md §9). */
import type { Principal } from '../../../shared/access/principal.ts'
import { readBotStats, readLanes } from '../../../shared/platform/queue/stats.ts'
import { administeredProject } from '../../../shared/projects/access.ts'
import type { Services } from '../../../shared/services.ts'

/** Errors: 403, 404. */
export async function botStats(
  { principals, redis, queues }: Services,
  caller: Principal,
  projectId: string,
) {
  await administeredProject(principals, caller, projectId)
  const [bots, lanes, published] = await Promise.all([
    readBotStats(redis, projectId),
    readLanes(redis, projectId),
    queues.workerMetrics(),
  ])
  return {
    project: { reference: `Project/${projectId}` },
    slotsUsed: sumOf(valuesOf(published, 'bot_slots_used', projectId)),
    held: Object.fromEntries(
      [
        ...Map.groupBy(
          valuesOf(published, 'bot_runs_held', projectId),
          ({ labels }) => labels.reason,
        ),
      ].map(([reason, values]) => [reason, sumOf(values)]),
    ),
    lanes,
    bots,
  }
}

interface Value {
  readonly labels: { readonly project?: string; readonly reason?: string }
  readonly value: number
}

interface Published {
  readonly name: string
  readonly values: readonly Value[]
}

/** Of all workers, as they last published them. */
function valuesOf(published: readonly string[], wanted: string, projectId: string): Value[] {
  // Each is a registry that a worker has written as JSON.
  const metrics = published.flatMap((text) => JSON.parse(text) as Published[])
  const values = metrics.flatMap(({ name, values }) => (name === wanted ? values : []))
  return values.filter(({ labels }) => labels.project === projectId)
}

function sumOf(values: readonly Value[]): number {
  return values.reduce((total, { value }) => total + value, 0)
}
