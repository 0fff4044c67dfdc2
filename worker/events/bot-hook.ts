/** A delivery to a Bot (events.md §4.1): the run is made here and now, PostgreSQL holds the job. */

import { codeLocation, platformMeta } from '../../shared/api/bot.ts'
import { HttpError } from '../../shared/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import type { Hook } from '../../shared/fhir/subscription.ts'
import type { ExecuteJob } from '../../shared/queue-jobs.ts'
import type { Services } from '../../shared/services.ts'
import type { Session } from '../../shared/store/principals.ts'
import { HandedBack, type Runner } from '../bots/run.ts'
import { Deferred } from '../bots/slots.ts'
import { CONTENT_TYPE, eventHeaders, givenHeaders, type Message } from './headers.ts'
import type { Sent } from './sent.ts'

/** A Bot that may be run, and as whom. */
export interface BotTarget {
  readonly bot: Resource & { readonly id: string }
  readonly version: number
  readonly projectId: string
  /** Whose membership the run has, and whose policy says what of the resource it gets. */
  readonly session: Session
}

const BACK_MS = 1000
/** A run that waits for no caller may wait for its turn. */
const QUEUE_MS = 60_000

/** The Bot as the author of the Subscription sees it; else what ends the attempt. */
export async function findTarget(
  { config, principals, repository }: Services,
  author: Session,
  id: string,
): Promise<BotTarget | Sent> {
  const version = await repository.read(author.principal, 'Bot', id).catch((error: unknown) => {
    if (error instanceof HttpError && error.status < 500) return undefined
    throw error
  })
  if (version?.content === undefined) return failed('error The Bot is not in sight')
  // A stored version of type Bot with its own id.
  const bot = JSON.parse(version.content) as BotTarget['bot']
  const projectId = platformMeta(version).project ?? ''
  const project = await principals.project(projectId)
  if (!project?.features.includes('bots')) {
    return { kind: 'stopped', reason: 'bots off', text: 'Bots not enabled' }
  }
  if (
    !isObject(codeLocation(bot, config.baseUrl)) &&
    codeLocation(bot, config.baseUrl) !== 'inline'
  ) {
    return failed('error No executable code')
  }
  const session = bot.runAsUser === true ? author : await principals.forProfile(`Bot/${id}`)
  if (session === undefined) return failed('error The Bot has no membership')
  return { bot, version: version.ver, projectId, session }
}

export function isTarget(found: BotTarget | Sent): found is BotTarget {
  return 'bot' in found
}

/** `input` is JSON text. */
export async function runBot(
  runner: Runner,
  projectId: string,
  { bot, version, projectId: botProjectId, session }: BotTarget,
  hook: Hook,
  message: Message,
  requester: string | undefined,
  input: string,
): Promise<Sent> {
  const { delivery } = message
  const { id, cause, added, attempt } = delivery
  const headers = Object.entries({ ...eventHeaders(message), ...givenHeaders(hook) })
  const job: ExecuteJob = {
    runId: id,
    projectId,
    botId: bot.id,
    botProjectId,
    botVersion: version,
    membershipId: session.membership.id ?? '',
    requester,
    contentType: CONTENT_TYPE,
    inputKind: 'json',
    input,
    headers: Object.fromEntries(headers.map(([name, value]) => [name.toLowerCase(), value])),
    traceId: cause.traceId ?? id,
    requestId: cause.requestId ?? id,
    depth: cause.depth ?? 0,
    added: added.getTime(),
    deadline: Date.now() + QUEUE_MS,
    subscription: `Subscription/${message.subscription}`,
    delivery: true,
  }
  try {
    const { reply, failure } = await runner.deliver(job, attempt)
    if (reply.status === 'ok') return { kind: 'received', text: 'status 200' }
    if (reply.status === 'unavailable')
      return { kind: 'fault', text: 'error The run could not start' }
    return failed(`error Bot run failed: ${failure ?? 'thrown'}`)
  } catch (error) {
    if (error instanceof Deferred) return { kind: 'back', delayMs: error.delayMs }
    if (error instanceof HandedBack) return { kind: 'back', delayMs: BACK_MS }
    throw error
  }
}

function failed(text: string): Sent {
  return { kind: 'failed', text, after: undefined }
}
