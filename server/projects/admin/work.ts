/** Scheduled Bots and Subscription deliveries of a Project, for its administrators. */
import type { Principal } from '../../../shared/access/principal.ts'
import { listScheduledBots, readSchedule } from '../../../shared/bots/schedules.ts'
import { badRequest } from '../../../shared/core/errors.ts'
import { typeName } from '../../../shared/fhir/definitions.ts'
import { checkTiming, nextOccurrences, parseSchedule } from '../../../shared/fhir/schedule.ts'
import { administeredProject } from '../../../shared/projects/ownership.ts'
import type { Services } from '../../../shared/request/services.ts'
import { estimateStorage } from '../../../shared/store/read/summaries.ts'
import { DELIVERY_KINDS } from '../../../shared/subscriptions/deliveries.ts'
import { findPendingDeliveries } from '../../../shared/subscriptions/pending-deliveries.ts'
import { listSubscriptionStates } from '../../../shared/subscriptions/state.ts'

/** Returns the next and the last run of each schedule. Errors: 403, 404. */
export async function schedules(
  { principals, database }: Services,
  caller: Principal,
  projectId: string,
) {
  const project = await administeredProject(principals, caller, projectId, ['Bot', 'read'])
  const found = await listScheduledBots(database, project.number)
  return {
    schedules: found.map(({ bot, ...times }) => ({
      bot: { reference: `Bot/${bot.id}`, display: bot.name },
      ...readSchedule(bot),
      ...times,
    })),
  }
}

const MOST_PREVIEWED = 5

/** Returns the next runs by the schedule of a Bot, stored or not. Errors: 400 with the element at fault, 403, 404. */
export async function previewSchedule(
  { principals }: Services,
  caller: Principal,
  projectId: string,
  bot: Record<string, unknown>,
) {
  await administeredProject(principals, caller, projectId)
  checkTiming(bot.cronTiming)
  const schedule = parseSchedule({ ...bot, resourceType: 'Bot' })
  if (schedule === undefined) {
    throw badRequest('A schedule needs cronString or cronTiming', 'Bot.cronString')
  }
  return { ...schedule, next: nextOccurrences(schedule, new Date(), MOST_PREVIEWED) }
}

/** Returns one row per Subscription with deliveries. Errors: 403, 404. */
export async function subscriptionStates(
  { principals, database }: Services,
  caller: Principal,
  projectId: string,
) {
  const project = await administeredProject(principals, caller, projectId, ['Subscription', 'read'])
  const states = await listSubscriptionStates(database, project.number)
  return {
    subscriptions: states.map(({ id, ...state }) => ({
      subscription: { reference: `Subscription/${id}` },
      ...state,
    })),
  }
}

/** Errors: 403, 404. */
export async function storage(
  { principals, database }: Services,
  caller: Principal,
  projectId: string,
) {
  const project = await administeredProject(principals, caller, projectId, ['Project', 'read'])
  return await estimateStorage(database, project.number)
}

/** Returns pending and failed deliveries of a Subscription with the last reply to each. Errors: 403, 404, 410. */
export async function pendingDeliveries(
  { principals, repository }: Services,
  caller: Principal,
  { projectId, id }: { readonly projectId: string; readonly id: string },
) {
  await administeredProject(principals, caller, projectId)
  const found = await repository.withStore((store) => findPendingDeliveries(store, caller, id))
  return {
    deliveries: found.map(({ type, resource, op, ...delivery }) => ({
      ...delivery,
      resource: { reference: `${typeName(type)}/${resource}` },
      interaction: DELIVERY_KINDS[op],
    })),
  }
}
