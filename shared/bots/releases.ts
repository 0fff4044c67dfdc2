/** The code that a run gets: the live one, that of a label, or by the shares of labels; and the versions of the past. */
import { systemPrincipal } from '../access/principal.ts'
import { badRequest } from '../core/errors.ts'
import { atLabel, botLabels, LIVE } from '../fhir/bot-labels.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Services } from '../request/services.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { codeLocation, type FoundBot } from './bot.ts'
import { BOT } from './schedules.ts'

/** Versions of one millisecond that are looked through for an earlier one. */
const SAME_MOMENT = 10

/** Returns the Bot with the code of the label, if one is given. Errors: 400 for a label that the Bot does not have. */
export function findLabel(found: FoundBot, label: string | undefined): FoundBot {
  if (label === undefined) return found
  const bot = atLabel(found.bot, label)
  if (bot === undefined) throw badRequest(`The bot has no label "${label.slice(0, 64)}"`, 'label')
  return { ...found, bot: { ...bot, id: found.bot.id }, label }
}

/** Returns the label of a run. It depends on the id, so that all attempts on one version of the Bot agree. */
export function runLabel(
  { bot, label }: { readonly bot: Resource; readonly label?: string },
  runId: string,
): { readonly label?: string } {
  const chosen = label ?? chooseLabel(bot, runId)
  return chosen === undefined || chosen === LIVE ? {} : { label: chosen }
}

function chooseLabel(bot: Resource, runId: string): string | undefined {
  // The last digits of both kinds of UUID are random.
  let rest = Number.parseInt(runId.slice(-8), 16) % 100
  return botLabels(bot).find(({ share }) => {
    rest -= share
    return rest < 0
  })?.name
}

/**
 * Returns the Bot as it was at a time, so that all attempts of a run have the same code. A Bot that had none then is
 * returned as it is, since no attempt has run.
 */
export async function botAt<Found extends Omit<FoundBot, 'label'>>(
  { repository, principals, config }: Services,
  found: Found,
  time: Date,
): Promise<Found> {
  if (found.updated <= time) return found
  const project = await principals.project(found.projectId)
  if (project === undefined) return found
  const page = await repository.history(systemPrincipal(project), BOT, found.bot.id, {
    count: SAME_MOMENT,
    offset: 0,
    at: { start: time, end: new Date(time.getTime() + 1) },
  })
  const version = page.versions.find(({ lastUpdated }) => lastUpdated <= time)
  if (version?.content === undefined) return found
  const bot = { ...parseVersion(version), id: found.bot.id }
  if (!codeLocation(bot, config.baseUrl)) return found
  return { ...found, bot, version: version.ver, updated: version.lastUpdated }
}
