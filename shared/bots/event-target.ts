/** The Bot that a Subscription starts, and its run-as session. */
import { scopeIn } from '../access/scopes.ts'
import { HttpError } from '../core/errors.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import { narrowSession, type Session } from '../identity/principals.ts'
import type { Services } from '../request/services.ts'
import { platformMeta } from '../store/rows/version.ts'
import { codeLocation, findBotMembership } from './bot.ts'

export interface BotTarget {
  readonly bot: Resource & { readonly id: string }
  readonly version: number
  readonly projectId: string
  /** The run's membership and the policy that filters the resource. */
  readonly session: Session
}

export interface MissingTarget {
  readonly isDisabled: boolean
  readonly text: string
}

/**
 * Returns the session of a Subscription's author in a Project, within the scope of its creation; undefined without an
 * active membership.
 */
export async function resolveAuthorSession(
  { principals }: Services,
  subscription: Resource,
  projectNumber: number,
): Promise<Session | undefined> {
  const author = subscription.meta?.author
  const reference = author?.reference ?? ''
  const isBot = reference.startsWith('Bot/')
  const found = await principals.forProfile(
    reference,
    isBot ? subscription.meta?.project : undefined,
  )
  if (found === undefined) return undefined
  const session = narrowSession(found, scopeIn(author) ?? found.principal)
  const { project, isSuperAdmin } = session.principal
  return isSuperAdmin || project.number === projectNumber ? session : undefined
}

export async function findTarget(
  services: Services,
  author: Session,
  id: string,
): Promise<BotTarget | MissingTarget> {
  const { config, principals, repository } = services
  const version = await repository.read(author.principal, 'Bot', id).catch((error: unknown) => {
    if (error instanceof HttpError && error.status < 500) return undefined
    throw error
  })
  if (version?.content === undefined) return { isDisabled: false, text: 'The Bot is not visible' }
  const bot = JSON.parse(version.content) as BotTarget['bot']
  const projectId = platformMeta(version).project ?? ''
  const project = await principals.project(projectId)
  if (!project?.features.includes('bots')) return { isDisabled: true, text: 'Bots not enabled' }
  const location = codeLocation(bot, config.baseUrl)
  if (!isObject(location) && location !== 'inline') {
    return { isDisabled: false, text: 'No executable code' }
  }
  const projects = [author.principal.project.id, projectId]
  const session = bot.runAsUser === true ? author : await findBotMembership(services, id, projects)
  if (session === undefined) return { isDisabled: false, text: 'The Bot has no membership' }
  return { bot, version: version.ver, projectId, session }
}

export function isBotTarget(found: BotTarget | MissingTarget): found is BotTarget {
  return 'bot' in found
}
