/** Resolves the Bot of a `$execute` or a Subscription, its identity, code and limits. */
import { callerKey, type Principal, systemPrincipal } from '../access/principal.ts'
import { authorProject, scopeIn } from '../access/scopes.ts'
import { Cache, getOrStart } from '../core/cache.ts'
import type { Config } from '../core/config/config.ts'
import { badRequest, forbiddenByPlatform, ignoreClientError, notFound } from '../core/errors.ts'
import { type BotExtension, botExtension } from '../fhir/bot-extensions.ts'
import { atLabel, botLabels, LIVE } from '../fhir/bot-labels.ts'
import { asArray, isObject, parseReference, type Resource } from '../fhir/resource.ts'
import { type Acting, narrowSession, type Session } from '../identity/principals.ts'
import type { OperationCall } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { equals, searchFor } from '../store/lookups.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { platformMeta, type Version } from '../store/rows/version.ts'

export interface FoundBot {
  readonly bot: Resource & { readonly id: string }
  readonly version: number
  readonly updated: Date
  readonly projectId: string
  /** The label whose code was asked for, which is the `executableCode` of `bot`. */
  readonly label?: string
}

/** A deployment by another process takes effect within this time plus one read. */
const FRESH_MS = 500
const CACHED_BOTS = 5000

/** One cache per process, with entries per caller: calls of a hot bot need no statement. */
const cache = new Cache<string, Promise<FoundBot>>({
  name: 'bots-by-caller',
  max: CACHED_BOTS,
  ttlMs: FRESH_MS,
  types: ['Bot'],
})

/** Errors: 400 without id and identifier; 404 and 403 of the read. */
export function findBot(call: OperationCall): Promise<FoundBot> {
  const { services, principal, id, request } = call
  const identifier = request.query.get('identifier')
  if (id === undefined && identifier === null) {
    throw badRequest('Must specify bot ID or identifier.')
  }
  const key = `${callerKey(principal)} ${id ?? ''} ${id === undefined ? identifier : ''}`
  return getOrStart(cache, key, () =>
    id === undefined
      ? findByIdentifier(services, principal, identifier ?? '')
      : services.repository.read(principal, 'Bot', id).then(toFoundBot),
  )
}

/** Errors: 404 for a Bot that was deleted. */
export function toFoundBot(version: Version): FoundBot {
  if (version.content === undefined) throw notFound()
  const projectId = platformMeta(version).project
  if (projectId === undefined) throw new Error(`Bot/${version.id} is in no project`)
  const bot = JSON.parse(version.content) as FoundBot['bot']
  return { bot, version: version.ver, updated: version.lastUpdated, projectId }
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
  const wanted = searchFor('Bot', [equals('identifier', 'token', identifier)], 100, [])
  const page = await repository.search(principal, wanted)
  const matches = page.versions.map(toFoundBot).filter(({ bot }) => {
    return asArray(bot.identifier).some(
      (item) => isObject(item) && (item.system ?? '') === system && item.value === value,
    )
  })
  const [first] = matches
  if (first === undefined) throw notFound()
  if (matches.length === 1) return first
  const oldest = await findOldestBot(repository, principal, matches)
  log.warn(
    { project: oldest.projectId, bot: oldest.bot.id, matches: matches.length },
    'Several bots have the identifier of an $execute; the oldest runs',
  )
  return oldest
}

async function findOldestBot(
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

// The code that a run gets: the live one, that of a label, or by the shares of labels; and the versions of the past.

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
  const page = await repository.history(systemPrincipal(project), 'Bot', found.bot.id, {
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

const DISABLED = 'Bots not enabled'

/** Returns why the bot cannot run; undefined if it can. */
export async function findProblem(
  { config, principals }: Services,
  { bot, projectId }: FoundBot,
): Promise<string | undefined> {
  const project = await principals.project(projectId)
  if (!project?.features.includes('bots')) return DISABLED
  const location = codeLocation(bot, config.baseUrl)
  if (location === undefined) return 'No executable code'
  return location === null ? 'Executable code is not a Binary' : undefined
}

/** Errors: 400 when bots are off or the bot has no code. */
export async function requireCode(services: Services, found: FoundBot): Promise<void> {
  const problem = await findProblem(services, found)
  if (problem !== undefined) throw badRequest(problem)
}

/**
 * Resolves the run-as membership: the Bot's in the caller's Project or in its own, otherwise the caller's, within the
 * caller's scope. Errors: as `requireCode`.
 */
export async function resolveRunAs(
  services: Services,
  principal: Principal,
  found: FoundBot,
): Promise<Acting> {
  await requireCode(services, found)
  const { bot, projectId } = found
  if (bot.runAsUser === true) return toActing(principal)
  const own = await findBotMembership(services, bot.id, [principal.project.id, projectId])
  return toActing(own?.principal ?? principal)
}

async function findBotMembership(
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

export function toActing({ membershipId, scope, patient }: Principal): Acting {
  if (membershipId === undefined) throw forbiddenByPlatform('No membership')
  return { membershipId, scope, patient }
}

/** A bot that a Subscription starts, with the run's membership and the policy that filters the resource. */
export interface BotTarget extends FoundBot {
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
  const { author, project: own } = subscription.meta ?? {}
  // A profile of another Project with the same id, such as that of a super admin, must not stand in for the author.
  const home = authorProject(author) ?? own
  const found = home && (await principals.forProfile(author?.reference ?? '', home))
  if (!found) return undefined
  const session = narrowSession(found, scopeIn(author) ?? found.principal)
  const { project, isSuperAdmin } = session.principal
  return isSuperAdmin || project.number === projectNumber ? session : undefined
}

export async function findTarget(
  services: Services,
  author: Session,
  id: string,
): Promise<BotTarget | MissingTarget> {
  const version = await services.repository
    .read(author.principal, 'Bot', id)
    .catch(ignoreClientError)
  if (version?.content === undefined) return { isDisabled: false, text: 'The Bot is not visible' }
  const found = toFoundBot(version)
  const problem = await findProblem(services, found)
  if (problem !== undefined) return { isDisabled: problem === DISABLED, text: problem }
  const projects = [author.principal.project.id, found.projectId]
  const session =
    found.bot.runAsUser === true ? author : await findBotMembership(services, id, projects)
  if (session === undefined) return { isDisabled: false, text: 'The Bot has no membership' }
  return { ...found, session }
}

export function isBotTarget(found: BotTarget | MissingTarget): found is BotTarget {
  return 'bot' in found
}

export interface BotLimits {
  readonly wallMs: number
  readonly cpuMs: number
  readonly memoryMb: number
  readonly resultBytes: number
  readonly logBytes: number
}

export const MAX_CODE_BYTES = 5 * 1024 * 1024
const CPU_MS = 10_000
const CPU_MAX_MS = 300_000
const MEMORY_MIN_MB = 16
const MEMORY_MAX_MB = 512
const QUEUE_SECONDS = 3600
const ATTEMPTS_MAX = 20

export function botLimits(bot: Resource, config: Config): BotLimits {
  const seconds = positive(bot.timeout)
  return {
    wallMs: Math.min(
      seconds === undefined ? config.botTimeoutMs : seconds * 1000,
      config.botTimeoutMaxMs,
    ),
    cpuMs: Math.min(setting(bot, 'cpuMs') ?? CPU_MS, CPU_MAX_MS),
    memoryMb: Math.max(
      MEMORY_MIN_MB,
      Math.min(setting(bot, 'memoryMb') ?? config.botMemoryMb, MEMORY_MAX_MB),
    ),
    resultBytes: config.botResultMaxBytes,
    logBytes: config.botLogMaxBytes,
  }
}

/** Returns the maximum wait for a worker in ms. */
export function maxQueueMs(bot: Resource): number {
  return Math.min(setting(bot, 'maxQueueSeconds') ?? QUEUE_SECONDS, QUEUE_SECONDS) * 1000
}

export function maxConcurrency(bot: Resource, config: Config): number {
  return setting(bot, 'maxConcurrency') ?? (config.botConcurrency || Number.POSITIVE_INFINITY)
}

/** True when each run needs a new isolate. */
export function needsFreshIsolate(bot: Resource): boolean {
  return botExtension(bot, 'fresh')?.item.valueBoolean === true
}

/** True when concurrent runs may share an isolate, in separate contexts. */
export function sharesIsolate(bot: Resource): boolean {
  return botExtension(bot, 'concurrent')?.item.valueBoolean === true
}

export function maxAttempts(bot: Resource): number {
  return Math.min(setting(bot, 'retry') ?? 1, ATTEMPTS_MAX)
}

/**
 * Returns the id of the Binary with the deployed code, `inline` for the deprecated `code`, undefined without code, or
 * null when `executableCode` names no Binary.
 */
export function codeLocation(
  bot: Resource,
  baseUrl: string,
): { readonly binary: string } | 'inline' | null | undefined {
  if (isObject(bot.executableCode)) {
    const { url } = bot.executableCode
    if (typeof url !== 'string') return null
    const prefix = `${baseUrl}fhir/R4/`
    const target = parseReference(url.startsWith(prefix) ? url.slice(prefix.length) : url)
    return target?.type === 'Binary' ? { binary: target.id } : null
  }
  return typeof bot.code === 'string' && bot.code !== '' ? 'inline' : undefined
}

function setting(bot: Resource, name: BotExtension): number | undefined {
  const found = botExtension(bot, name)?.item
  return positive(found?.valueInteger ?? found?.valuePositiveInt ?? found?.valueUnsignedInt)
}

function positive(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isInteger(value) && value > 0 ? value : undefined
}
