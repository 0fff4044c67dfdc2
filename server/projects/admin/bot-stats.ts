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
    slotsUsed: slotsUsed(published, projectId),
    lanes,
    bots,
  }
}

interface Published {
  readonly name: string
  readonly values: readonly { readonly labels: { project?: string }; readonly value: number }[]
}

/** Of all workers, as they last told. */
function slotsUsed(published: readonly string[], projectId: string): number {
  // Each is a registry that a worker has written as JSON.
  const metrics = published.flatMap((text) => JSON.parse(text) as Published[])
  const values = metrics.flatMap(({ name, values }) => (name === 'bot_slots_used' ? values : []))
  return values
    .filter(({ labels }) => labels.project === projectId)
    .reduce((total, { value }) => total + value, 0)
}
