/** Loads the bot, code and limits (cached by version) and secrets (by session) of a run, and writes its event. */
import { hash } from 'node:crypto'
import { withoutSecrets } from '../../shared/access/fields/fields.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { system } from '../../shared/access/project-context.ts'
import {
  type BotLimits,
  botLimits,
  codeLocation,
  MAX_CODE_BYTES,
  maxAttempts,
  maxConcurrency,
  needsFreshIsolate,
  sharesIsolate,
} from '../../shared/bots/bot.ts'
import { type CodeFormat, codeFormat } from '../../shared/bots/code.ts'
import { requiredLibraries } from '../../shared/bots/modules.ts'
import { codeUrl } from '../../shared/bots/versions.ts'
import { Cache, getOrStart, sizeWithin } from '../../shared/core/cache.ts'
import { badRequest } from '../../shared/core/errors.ts'
import { type BotDeclarations, readDeclarations } from '../../shared/fhir/bot-declarations.ts'
import { atLabel, LIVE, versionName } from '../../shared/fhir/bot-labels.ts'
import { asArray, isObject, parseReference, type Resource } from '../../shared/fhir/resource.ts'
import { actingSession, type Session } from '../../shared/identity/principals.ts'
import { SMTP_PASSWORD } from '../../shared/outbound/project-mail.ts'
import { createMemberLogin, sessionDetails } from '../../shared/projects/signed-in-user.ts'
import { botAddress, type ExecuteJob } from '../../shared/queue/jobs.ts'
import { readBinaryContent, readWhole } from '../../shared/request/binary/content.ts'
import type { Services } from '../../shared/request/services.ts'
import { platformMeta } from '../../shared/store/rows/version.ts'

interface Secrets {
  /** `event.secrets` as JSON text. */
  readonly text: string
  readonly values: readonly string[]
}

export type Loader = ReturnType<typeof createLoader>

/** Most of the cached code; a bot has at most 5 MB. */
const CODE_CACHE_MB = 64
const BOT_OVERHEAD = 10_000
const PROJECT_FRESH_MS = 4000

export function createLoader(services: Services) {
  const { principals } = services
  const bots = new Cache<string, LoadedBot, ExecuteJob>({
    name: 'bot-code',
    max: sizeWithin(services.config.workerMemoryMb, CODE_CACHE_MB),
    size: ({ code }) => code.length + BOT_OVERHEAD,
    fetch: (_key, _stale, { context }) => loadBot(services, context),
  })
  const projects = new Cache<string, Resource>({
    name: 'bot-projects',
    max: 1000,
    ttlMs: PROJECT_FRESH_MS,
    staleKey: ({ type, id }) => (type === 'Project' ? id : undefined),
    fetch: (id) => loadProject(services, id),
  })

  /** Errors: 400 when the code is gone. */
  async function bot(job: ExecuteJob): Promise<LoadedBot> {
    // A version never changes, so the cache is never stale.
    const key = codeKey(job)
    const found = bots.get(key) ?? (await bots.fetch(key, { context: job }))
    if (found === undefined) throw badRequest('No executable code')
    return found
  }

  return {
    bot,
    /** Loads the bot, its run-as session, secrets and hosts. Errors: 400 when the code or the membership is gone. */
    async run(job: ExecuteJob): Promise<LoadedRun> {
      const [loaded, session] = await Promise.all([bot(job), actingSession(principals, job)])
      if (session === undefined) throw badRequest('The membership that the bot runs as is gone')
      const present = presentBot(job, loaded.bot, session)
      const home = await principals.project(job.botProjectId)
      // Either of the Bot's Project and the Project that it works in may require declarations.
      const isDeclared = [home, session.principal.project].some(
        (project) => project?.requiresDeclarations === true,
      )
      const declared = readDeclarations(present, isDeclared)
      const isHome = session.principal.project.id === job.botProjectId
      const botProject = isHome ? session.project : await projects.fetch(job.botProjectId)
      const sources = [botProject, ...(isHome ? [] : [session.project])]
      const secrets = mergeSecrets(sources, present.system === true, declared?.secrets)
      const context = await getOrStart(contexts, session, () => describeContext(services, session))
      return { ...loaded, session, declared, secrets, context }
    },
    /** Returns the project's limit on concurrent runs over all workers; Infinity if not set. */
    async projectConcurrency({ projectId }: ExecuteJob): Promise<number> {
      const { botConcurrency = 0 } = (await principals.project(projectId)) ?? {}
      return botConcurrency || services.config.projectConcurrency || Number.POSITIVE_INFINITY
    },
  }
}

/** A later attempt has the code of the first one, but not the secrets and hosts that its Bot has lost since then. */
function presentBot({ botId }: ExecuteJob, bot: Resource, { profile }: Session): Resource {
  return profile.resourceType === 'Bot' && profile.id === botId ? profile : bot
}

async function loadBot(services: Services, job: ExecuteJob): Promise<LoadedBot> {
  const { repository, principals, config } = services
  const project = await principals.project(job.botProjectId)
  if (project === undefined) throw badRequest('No executable code')
  const system = systemPrincipal(project)
  const version = await repository.readVersion(system, 'Bot', job.botId, String(job.botVersion))
  const label = job.label ?? LIVE
  const bot = atLabel(JSON.parse(version.content ?? '{}') as Resource, label)
  if (bot === undefined) throw badRequest(`The bot has no label ${label}`)
  const location = codeLocation(bot, config.baseUrl)
  if (!location) throw badRequest('No executable code')
  let code = String(bot.code)
  if (location !== 'inline') {
    const stored = await repository.read(system, 'Binary', location.binary)
    // The service can read every Project; a Bot may run only code of its Project.
    if (platformMeta(stored).project !== project.id) throw badRequest('No executable code')
    const content = readBinaryContent(stored)
    if (content.size === 0) throw badRequest('No executable code')
    code = (await readWhole(services, content, MAX_CODE_BYTES)).toString()
  }
  const file = codeFile(bot)
  return {
    bot,
    code,
    file,
    version: versionName(bot.executableCode) ?? codeUrl(bot.executableCode),
    codeHash: hash('sha256', `${file}\n${code}`),
    format: codeFormat(code, file),
    libraries: requiredLibraries(code),
    wantsToken: code.includes('getAccessToken'),
    limits: botLimits(bot, config),
    maxConcurrency: maxConcurrency(bot, config),
    maxAttempts: maxAttempts(bot),
    fresh: needsFreshIsolate(bot),
    concurrent: sharesIsolate(bot),
  }
}

/** The code of a job never changes, and neither do the limits of its bot. */
export function codeKey(job: ExecuteJob): string {
  const { botVersion, label } = job
  return `${botAddress(job)}/${botVersion}${label === undefined ? '' : `@${label}`}`
}

/** Sanitizes the title, which becomes part of stack traces. */
function codeFile(bot: Resource): string {
  const title = isObject(bot.executableCode) ? bot.executableCode.title : undefined
  const name = typeof title === 'string' ? title.replaceAll(/[^\w.-]/g, '_').slice(-100) : ''
  return name === '' ? 'index.js' : name
}

async function loadProject(services: Services, id: string): Promise<Resource | undefined> {
  const context = await services.principals.project(id)
  if (context === undefined) return undefined
  const [version] = await services.repository.readMany(systemPrincipal(context), [
    { type: 'Project', id },
  ])
  return version?.content === undefined ? undefined : (JSON.parse(version.content) as Resource)
}

/** Later projects override earlier ones, and `secret` overrides `systemSecret`. Bots send mail without its password. */
function mergeSecrets(
  projects: readonly (Resource | undefined)[],
  withSystem: boolean,
  named: ReadonlySet<string> | undefined,
): Secrets {
  const merged = new Map<string, Record<string, unknown>>()
  for (const project of projects) {
    const lists = [...(withSystem ? [project?.systemSecret] : []), project?.secret]
    for (const secret of lists.flatMap((list) => asArray(list))) {
      if (!isObject(secret) || typeof secret.name !== 'string') continue
      if (secret.name === SMTP_PASSWORD) continue
      if (named === undefined || named.has(secret.name)) merged.set(secret.name, secret)
    }
  }
  return {
    text: JSON.stringify(Object.fromEntries(merged)),
    values: secretTexts(merged.values()),
  }
}

interface LoadedRun extends LoadedBot {
  readonly session: Session
  /** Undefined for a Bot that may use all secrets and hosts. */
  readonly declared: BotDeclarations | undefined
  readonly secrets: Secrets
  /** JSON text of the preset context of `medplum`. */
  readonly context: string
}

export interface LoadedBot {
  readonly bot: Resource
  readonly code: string
  readonly file: string
  /** The name of the version, or the `Binary/id` of code that was deployed without one. */
  readonly version: string
  /** Hash of the file and its name. */
  readonly codeHash: string
  readonly format: CodeFormat
  readonly libraries: readonly string[]
  /** The client's `getAccessToken` is synchronous, so the token must exist before the call. */
  readonly wantsToken: boolean
  readonly limits: BotLimits
  /** Over all workers. */
  readonly maxConcurrency: number
  readonly maxAttempts: number
  readonly fresh: boolean
  readonly concurrent: boolean
}

// The handler's `event` and the preset context of `medplum`

/** Shorter values are ordinary words in a log. */
const SHORTEST_SECRET = 8

// All runs of a membership share a session until it is reloaded, and its text with it.
const contexts = new WeakMap<Session, Promise<string>>()

interface EventOf {
  readonly job: ExecuteJob
  readonly bot: Resource
  readonly secrets: string
  readonly context: string
  readonly times: { readonly attempt: number; readonly deadline: number }
  /** Only for bots that use it synchronously. */
  readonly accessToken: string | undefined
}

export function eventText(run: EventOf): string {
  const { job, bot, secrets, context, times, accessToken } = run
  const head = JSON.stringify({
    bot: {
      reference: `Bot/${job.botId}`,
      ...(typeof bot.name === 'string' ? { display: bot.name } : {}),
    },
    contentType: job.contentType,
    requester: job.requester === undefined ? undefined : { reference: job.requester },
    traceId: job.traceId,
    headers: job.headers,
    path: job.path,
    agent: job.agent,
    scheduledTime: job.scheduled?.time,
    rawBody: job.hasRawBody,
    // The sandbox replaces it by the stream.
    responseStream: job.stream === undefined ? undefined : true,
    runId: job.runId,
    ...times,
    accessToken,
  })
  const parameters = job.parameters === undefined ? '' : `,"parameters":${job.parameters}`
  return `${head.slice(0, -1)}${parameters},"secrets":${secrets},"context":${context}}`
}

async function describeContext(services: Services, session: Session): Promise<string> {
  const { project, profile, ...rest } = await sessionDetails(services, session)
  const details = JSON.stringify({
    ...rest,
    project: { ...shownProject(session.project), ...project },
    membership: session.membership,
    profile,
  })
  return JSON.stringify({ baseUrl: services.config.baseUrl, details })
}

function shownProject(project: Resource): Record<string, unknown> {
  const { systemSetting: _, site: __, ...shown } = withoutSecrets(project)
  return shown
}

/** Returns the forms in which secrets may appear in a log, longest first, as in the sandbox (guest/journal.cjs). */
function secretTexts(secrets: Iterable<Readonly<Record<string, unknown>>>): string[] {
  const texts = new Set<string>()
  for (const { valueString, valueInteger, valueDecimal } of secrets) {
    const text = String(valueString ?? valueInteger ?? valueDecimal ?? '')
    if (text.length < SHORTEST_SECRET) continue
    texts.add(text)
    texts.add(JSON.stringify(text).slice(1, -1))
  }
  // One may contain another.
  return [...texts].sort((a, b) => b.length - a.length)
}

/** Returns an OperationOutcome as text, with the run id in its first issue. */
export function withRunId(body: string, runId: string): string {
  const outcome: unknown = JSON.parse(body)
  if (!isObject(outcome) || !Array.isArray(outcome.issue)) return body
  const [first, ...rest] = outcome.issue
  if (!isObject(first) || first.diagnostics !== undefined) return body
  return JSON.stringify({ ...outcome, issue: [{ ...first, diagnostics: runId }, ...rest] })
}

// Access tokens, made on demand since most bots never use one. A token has the scope of its run and ends with it.

const SLACK_S = 60
/**
 * Disposing revokes the Login at once, or within 5 s if Redis is unavailable. After a worker crash the token outlives
 * the run's wall limit by a minute at most.
 */
export function createRunToken(
  services: Services,
  session: Session,
  declared: BotDeclarations | undefined,
  wallMs: number,
) {
  let login: Promise<string> | undefined
  let token: Promise<string> | undefined

  async function issue(): Promise<string> {
    const { principal } = session
    // The token of another profile would not be limited.
    if (declared !== undefined && session.profile.resourceType !== 'Bot') {
      throw badRequest('A Bot that names its secrets or hosts has no token of its caller')
    }
    login = createMemberLogin(services, session, 'execute')
    const loginId = await login
    return await services.tokens.issue({
      loginId,
      subject: parseReference(principal.profile)?.id ?? loginId,
      clientId: undefined,
      profile: principal.profile ?? '',
      scope: principal.scope,
      lifetimeSeconds: Math.ceil(wallMs / 1000) + SLACK_S,
    })
  }

  return {
    take(): Promise<string> {
      token ??= issue()
      return token
    },
    async [Symbol.asyncDispose](): Promise<void> {
      const id = await login?.catch(() => undefined)
      if (id === undefined) return
      const { repository, log } = services
      try {
        await repository.patch(system, { type: 'Login', id }, (found) => ({
          ...found,
          revoked: true,
        }))
      } catch (cause) {
        log.warn({ cause, login: id }, 'The token of a bot run could not be ended')
      }
    },
  }
}

/** For dry runs: it opens nothing. */
export const NO_TOKEN = {
  take: async () => 'dry-run',
  [Symbol.asyncDispose]: async () => {},
}
