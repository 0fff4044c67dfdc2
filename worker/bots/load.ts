/** Loads what a run needs besides its input, and writes its event: bot, code and limits by version, secrets by session. */

import { createHash } from 'node:crypto'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
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
import { Cache } from '../../shared/core/cache.ts'
import { badRequest } from '../../shared/core/errors.ts'
import { isObject, parseReference, type Resource } from '../../shared/fhir/resource.ts'
import { actingSession, type Session } from '../../shared/identity/principals.ts'
import { createMemberLogin, sessionDetails } from '../../shared/projects/signed-in-user.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import { readBinaryContent, readWhole } from '../../shared/request/binary/content.ts'
import type { Services } from '../../shared/request/services.ts'
import { platformMeta } from '../../shared/store/rows/version.ts'

export interface Secrets {
  /** `event.secrets` as JSON text. */
  readonly text: string
  /** The values that a log must not show. */
  readonly values: readonly string[]
}

export interface Loader {
  /** Errors: 400 when the code is gone. */
  bot(job: ExecuteJob): Promise<LoadedBot>
  /** Runs of the job's project at a time, over all workers; Infinity where nobody has set it. */
  projectConcurrency(job: ExecuteJob): Promise<number>
  /** As whom the run acts. Errors: 400 when the membership is gone. */
  session(job: ExecuteJob): Promise<Session>
  secrets(job: ExecuteJob, bot: Resource, session: Session): Promise<Secrets>
}

/** Characters of code kept; a bot has at most 5 MB. */
const CODE_CACHE = 64 * 1024 * 1024
const BOT_OVERHEAD = 10_000
const PROJECT_FRESH_MS = 4000

export function createLoader(services: Services): Loader {
  const bots = new Cache<string, LoadedBot, ExecuteJob>({
    name: 'bot-code',
    max: CODE_CACHE,
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

  return {
    async bot(job) {
      // A version never changes, so what is cached is never stale.
      const key = `${job.botId}/${job.botVersion}`
      const found = bots.get(key) ?? (await bots.fetch(key, { context: job }))
      if (found === undefined) throw badRequest('No executable code')
      return found
    },
    async projectConcurrency({ projectId }) {
      const { botConcurrency = 0 } = (await services.principals.project(projectId)) ?? {}
      return botConcurrency || services.config.projectConcurrency || Number.POSITIVE_INFINITY
    },
    async session(job) {
      const session = await actingSession(services.principals, job)
      if (session === undefined) throw badRequest('The membership that the bot runs as is gone')
      return session
    },
    async secrets(job, bot, session) {
      const withSystem = bot.system === true
      const isOwn = session.principal.project.id === job.botProjectId
      const botProject = isOwn ? session.project : await projects.fetch(job.botProjectId)
      const sources = [botProject, ...(isOwn ? [] : [session.project])]
      return mergeSecrets(sources, withSystem)
    },
  }
}

async function loadBot(services: Services, job: ExecuteJob): Promise<LoadedBot> {
  const { repository, principals, config } = services
  const project = await principals.project(job.botProjectId)
  if (project === undefined) throw badRequest('No executable code')
  const system = systemPrincipal(project)
  const version = await repository.readVersion(system, 'Bot', job.botId, String(job.botVersion))
  // A stored version is a resource.
  const bot = JSON.parse(version.content ?? '{}') as Resource
  const location = codeLocation(bot, config.baseUrl)
  if (!location) throw badRequest('No executable code')
  let code = String(bot.code)
  if (location !== 'inline') {
    const stored = await repository.read(system, 'Binary', location.binary)
    // The service reads every Project; a Bot runs the code of its own alone.
    if (platformMeta(stored).project !== project.id) throw badRequest('No executable code')
    const content = readBinaryContent(stored)
    if (content.size === 0) throw badRequest('No executable code')
    code = (await readWhole(services, content, MAX_CODE_BYTES)).toString()
  }
  const file = fileOf(bot)
  return {
    bot,
    code,
    file,
    codeHash: createHash('sha256').update(`${file}\n${code}`).digest('hex'),
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

/** The title may be any text; it becomes a part of stacks. */
function fileOf(bot: Resource): string {
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
  // A stored version is a resource.
  return version?.content === undefined ? undefined : (JSON.parse(version.content) as Resource)
}

/** Later projects win over earlier ones, `secret` over `systemSecret`. */
function mergeSecrets(projects: readonly (Resource | undefined)[], withSystem: boolean): Secrets {
  const merged = new Map<string, Record<string, unknown>>()
  for (const project of projects) {
    const lists = [...(withSystem ? [project?.systemSecret] : []), project?.secret]
    for (const secret of lists.flatMap((list) => (Array.isArray(list) ? list : []))) {
      if (isObject(secret) && typeof secret.name === 'string') merged.set(secret.name, secret)
    }
  }
  return {
    text: JSON.stringify(Object.fromEntries(merged)),
    values: secretTexts(merged.values()),
  }
}

// A Bot with all that a run of it needs.

export interface LoadedBot {
  readonly bot: Resource
  readonly code: string
  /** Name of its file as its author knows it. */
  readonly file: string
  /** Hash of the file, name included. */
  readonly codeHash: string
  readonly format: CodeFormat
  /** Names of the libraries that its code uses, those that others need before them. */
  readonly libraries: readonly string[]
  /** The client's `getAccessToken` does not wait, so that a token has to be there before it is called. */
  readonly wantsToken: boolean
  readonly limits: BotLimits
  /** Over all workers. */
  readonly maxConcurrency: number
  /** The attempts at an asynchronous run that fails. */
  readonly maxAttempts: number
  readonly fresh: boolean
  readonly concurrent: boolean
}

// * The JSON text that becomes the handler's `event`, and what `medplum` knows preset.

/** Elements of a Project that its members do not see. */
const HIDDEN_OF_PROJECT = new Set(['secret', 'systemSecret', 'systemSetting', 'site'])

/** Shorter values are ordinary words in a log. */
const SHORTEST_SECRET = 8

// A session is shared by all runs of a membership until it is read again, and its text with it.
const contexts = new WeakMap<Session, string>()

interface EventTimes {
  readonly attempt: number
  /** Epoch ms. */
  readonly deadline: number
}

interface EventOf {
  readonly job: ExecuteJob
  readonly bot: Resource
  readonly session: Session
  /** JSON text already. */
  readonly secrets: string
  readonly times: EventTimes
  readonly baseUrl: string
  /** For bots that ask for it at once. */
  readonly accessToken: string | undefined
}

export function eventText(run: EventOf): string {
  const { job, bot, session, secrets, times, baseUrl, accessToken } = run
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
    scheduledTime: job.scheduled?.time,
    rawBody: job.hasRawBody,
    runId: job.runId,
    ...times,
    accessToken,
  })
  return `${head.slice(0, -1)},"secrets":${secrets},"context":${contextText(session, baseUrl)}}`
}

function contextText(session: Session, baseUrl: string): string {
  let text = contexts.get(session)
  if (text === undefined) {
    const { project, profile, ...rest } = sessionDetails(session)
    text = JSON.stringify({
      baseUrl,
      // A text, so that runs which never ask do not parse it.
      details: JSON.stringify({
        ...rest,
        project: { ...visible(session.project), ...project },
        membership: session.membership,
        profile,
      }),
    })
    contexts.set(session, text)
  }
  return text
}

function visible(project: Resource): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(project).filter(([name]) => !HIDDEN_OF_PROJECT.has(name)),
  )
}

/** The texts by which secrets may show in a log, the longest first, as the sandbox has them (guest/journal.cjs). */
function secretTexts(secrets: Iterable<Readonly<Record<string, unknown>>>): string[] {
  const texts = new Set<string>()
  for (const { valueString, valueInteger, valueDecimal } of secrets) {
    const text = String(valueString ?? valueInteger ?? valueDecimal ?? '')
    if (text.length < SHORTEST_SECRET) continue
    texts.add(text)
    // As it stands in JSON.
    texts.add(JSON.stringify(text).slice(1, -1))
  }
  // One may be part of another.
  return [...texts].sort((a, b) => b.length - a.length)
}

/** An OperationOutcome as text, with the run's id in its first issue. */
export function withRunId(body: string, runId: string): string {
  const outcome: unknown = JSON.parse(body)
  if (!isObject(outcome) || !Array.isArray(outcome.issue)) return body
  const [first, ...rest] = outcome.issue
  if (!isObject(first) || first.diagnostics !== undefined) return body
  return JSON.stringify({ ...outcome, issue: [{ ...first, diagnostics: runId }, ...rest] })
}

// * Access tokens for bots that ask for one: most never do, so none is made beforehand. A token
// reaches as far as its run, and ends with it.

const SLACK_S = 60
const system = systemPrincipal(SYSTEM_PROJECT)

interface RunToken extends AsyncDisposable {
  /** The one of the run, made when it is first asked for. */
  take(): Promise<string>
}

/**
 * Disposing it revokes its Login: at once, within 5 s where Redis is away. Should the worker die, the
 * token outlives the run's wall limit by a minute at most.
 */
export function createRunToken(services: Services, session: Session, wallMs: number): RunToken {
  let login: Promise<string> | undefined
  let token: Promise<string> | undefined

  async function issue(): Promise<string> {
    const { principal } = session
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
    take() {
      token ??= issue()
      return token
    },
    async [Symbol.asyncDispose]() {
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
