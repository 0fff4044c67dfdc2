/** The work that a Project does by itself, for its administrators: Bots on a schedule, deliveries of Subscriptions. */
import type { Principal } from '../../../shared/access/principal.ts'
import { plannedBots, readSchedule } from '../../../shared/bots/schedules.ts'
import { typeName } from '../../../shared/fhir/definitions.ts'
import { administeredProject } from '../../../shared/projects/ownership.ts'
import type { Services } from '../../../shared/services.ts'
import { createPendingDeliveries } from '../../../shared/subscriptions/pending-deliveries.ts'
import { statesOf } from '../../../shared/subscriptions/state.ts'

/** The next and the last run of each. Errors: 403, 404. */
export async function schedules(
  { principals, database }: Services,
  caller: Principal,
  projectId: string,
) {
  const project = await administeredProject(principals, caller, projectId)
  const found = await plannedBots(database, project.number)
  return {
    schedules: found.map(({ bot, ...times }) => ({
      bot: { reference: `Bot/${bot.id}`, display: bot.name },
      ...readSchedule(bot),
      ...times,
    })),
  }
}

/** How deliveries go, a row a Subscription that has had any. Errors: 403, 404. */
export async function subscriptionStates(
  { principals, database }: Services,
  caller: Principal,
  projectId: string,
) {
  const project = await administeredProject(principals, caller, projectId)
  const states = await statesOf(database, project.number)
  return {
    subscriptions: states.map(({ id, ...state }) => ({
      subscription: { reference: `Subscription/${id}` },
      ...state,
    })),
  }
}

const CHANGES = { c: 'create', u: 'update', d: 'delete' } as const

/** Deliveries of a Subscription that wait or have failed, with the last answer to each. Errors: 403, 404, 410. */
export async function pendingDeliveries(
  { principals, repository }: Services,
  caller: Principal,
  { projectId, id }: { readonly projectId: string; readonly id: string },
) {
  await administeredProject(principals, caller, projectId)
  const found = await repository.feature(createPendingDeliveries).list(caller, id)
  return {
    deliveries: found.map(({ type, resource, op, ...delivery }) => ({
      ...delivery,
      resource: { reference: `${typeName(type)}/${resource}` },
      interaction: CHANGES[op],
    })),
  }
}
