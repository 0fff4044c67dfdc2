/** Which bot a `$execute` means, and as whom it runs. */
import { LRUCache } from 'lru-cache'
import { askerKey, type Principal } from '../access/principal.ts'
import { badRequest, HttpError, notFound } from '../errors.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import type { Acting, Session } from '../identity/principals.ts'
import type { OperationCall } from '../request/request.ts'
import type { Services } from '../services.ts'
import { platformMeta, type Version } from '../store/rows/version.ts'
import { codeLocation } from './bot.ts'

export interface FoundBot {
  readonly bot: Resource & { readonly id: string }
  readonly version: number
  readonly projectId: string
}

/** A deployment of another process is in use within this time plus one read. */
const FRESH_MS = 500
const CACHED_BOTS = 5000

/** One cache a process: a hot bot costs its callers no statement. Entries are a caller's own. */
const caches = new WeakMap<Services, LRUCache<string, Promise<FoundBot>>>()

/** Errors: 400 without id and identifier, 404 and 403 of the read. */
export function findBot(call: OperationCall): Promise<FoundBot> {
  const { services, principal, id, request } = call
  const identifier = request.query.get('identifier')
  if (id === undefined && identifier === null) {
    throw badRequest('Must specify bot ID or identifier.')
  }
  let cache = caches.get(services)
  if (cache === undefined) {
    cache = new LRUCache({ max: CACHED_BOTS, ttl: FRESH_MS })
    caches.set(services, cache)
  }
  const key = `${askerKey(principal)} ${id ?? ''} ${id === undefined ? identifier : ''}`
  const cached = cache.get(key)
  if (cached !== undefined) return cached
  const found =
    id === undefined
      ? findByIdentifier(services, principal, identifier ?? '')
      : services.repository.read(principal, 'Bot', id).then(toFound)
  cache.set(key, found)
  // A failure is not kept: the bot may be there, or be allowed, the next moment.
  found.catch(() => cache.delete(key))
  return found
}

/** A Bot has changed: its new code runs at once. */
export function forgetFound(services: Services): void {
  caches.get(services)?.clear()
}

/** Errors: 404 for a Bot that was deleted. */
export function toFound(version: Version): FoundBot {
  if (version.content === undefined) throw notFound()
  const projectId = platformMeta(version).project
  if (projectId === undefined) throw new Error(`Bot/${version.id} is in no project`)
  // A stored version of type Bot with its own id.
  const bot = JSON.parse(version.content) as FoundBot['bot']
  return { bot, version: version.ver, projectId }
}

async function findByIdentifier(
  { repository, log }: Services,
  principal: Principal,
  identifier: string,
): Promise<FoundBot> {
  const bar = identifier.indexOf('|')
  if (bar < 0) throw notFound()
  const system = identifier.slice(0, bar)
  const value = identifier.slice(bar + 1)
  const page = await repository.search(principal, {
    type: 'Bot',
    conditions: [{ code: 'identifier', type: 'token', modifier: undefined, values: [identifier] }],
    includes: [],
    sort: [],
    count: 100,
    offset: 0,
    cursor: undefined,
    total: 'none',
    summary: undefined,
    elements: undefined,
    ignored: [],
  })
  const matches = page.versions.map(toFound).filter(({ bot }) => {
    const identifiers: readonly unknown[] = Array.isArray(bot.identifier) ? bot.identifier : []
    return identifiers.some(
      (item) => isObject(item) && (item.system ?? '') === system && item.value === value,
    )
  })
  const [first] = matches
  if (first === undefined) throw notFound()
  if (matches.length === 1) return first
  const oldest = await oldestOf(repository, principal, matches)
  log.warn(
    { project: oldest.projectId, bot: oldest.bot.id, matches: matches.length },
    'Several bots have the identifier of an $execute; the oldest runs',
  )
  return oldest
}

async function oldestOf(
  repository: Services['repository'],
  principal: Principal,
  bots: readonly FoundBot[],
): Promise<FoundBot> {
  const aged = await Promise.all(
    bots.map(async (found) => {
      const page = await repository.history(principal, 'Bot', found.bot.id, {
        count: 1,
        offset: found.version - 1,
      })
      const created = page.versions[0]?.lastUpdated.getTime() ?? Number.POSITIVE_INFINITY
      return { found, created }
    }),
  )
  aged.sort((a, b) => a.created - b.created || (a.found.bot.id < b.found.bot.id ? -1 : 1))
  const [oldest] = aged
  if (oldest === undefined) throw notFound()
  return oldest.found
}

/** Errors: 400 when bots are off or the bot has no code. */
export async function requireCode(
  { config, principals }: Services,
  { bot, projectId }: FoundBot,
): Promise<void> {
  const project = await principals.project(projectId)
  if (!project?.features.includes('bots')) throw badRequest('Bots not enabled')
  const location = codeLocation(bot, config.baseUrl)
  if (location === undefined) throw badRequest('No executable code')
  if (location === null) throw badRequest('Executable code is not a Binary')
}

/**
 * The Bot's membership in the Project of the caller, else in its own; else the caller's, within the caller's scope.
 * Errors: those of `requireCode`.
 */
export async function runAs(
  services: Services,
  principal: Principal,
  found: FoundBot,
): Promise<Acting> {
  await requireCode(services, found)
  const { bot, projectId } = found
  if (bot.runAsUser === true) return actingAs(principal)
  const own = await memberOf(services, bot.id, [principal.project.id, projectId])
  return actingAs(own?.principal ?? principal)
}

/** The Bot's membership in the first of the Projects that has one. */
export async function memberOf(
  { principals }: Services,
  botId: string,
  projectIds: readonly string[],
): Promise<Session | undefined> {
  for (const projectId of new Set(projectIds)) {
    const found = await principals.forProfile(`Bot/${botId}`, projectId)
    if (found !== undefined) return found
  }
  return undefined
}

/** Errors: 403 for the service's own work. */
export function actingAs({ membershipId, scope, patient }: Principal): Acting {
  if (membershipId === undefined) throw new HttpError(403, badRequest('No membership').outcome)
  return { membershipId, scope, patient }
}
