/**
 * Pre-commit bots: a bot is asked about a write before anything of it is locked or stored. What it
 * answers may take the place of what was sent, and goes the way of everything that is sent.
 */
import { randomUUIDv7 } from 'node:crypto'
import { changedBeyondRights } from '../access/guarded/rights.ts'
import { type Change, SUBSCRIPTION } from '../access/subscription.ts'
import { withContentOf, withoutContent } from '../binary/content.ts'
import { actingAs } from '../bots/bot.ts'
import { authorOf, type BotTarget, findTarget, isTarget } from '../bots/event-target.ts'
import { createJob } from '../bots/execute.ts'
import {
  badRequest,
  conflict,
  HttpError,
  type Issue,
  issue,
  outcome,
  refused,
  unavailable,
} from '../errors.ts'
import { parseJson } from '../fhir/json.ts'
import { isObject, isResource, type Resource } from '../fhir/resource.ts'
import type { ExecuteJob, ExecuteReply } from '../platform/queue/jobs.ts'
import { DEPTH_HEADER } from '../request/quota.ts'
import { FHIR_JSON } from '../request/reply.ts'
import type { Interaction } from '../request/request.ts'
import type { Services } from '../services.ts'
import type { WriteOptions, WriteResult } from '../store/rows/version.ts'
import { mayWriteGuarded } from '../store/write/guards.ts'
import { createEvents, eventBody } from '../subscriptions/events.ts'
import type { PreCommit } from '../subscriptions/store-pre-commit.ts'
import { withLiteralReferences } from './conditional-references.ts'
import { acceptResource } from './interaction.ts'

const WAIT_MS = 5000
/** The attempts at a patch whose resource others change meanwhile. */
const ATTEMPTS = 3

/** False where no bot can be asked about anything. */
export function mayAsk({ services, principal, request }: Interaction): boolean {
  const isOn = services.config.preCommitBots && principal.project.preCommit === true
  return isOn && request.isPreCommitted !== true
}

/**
 * A new or changed resource as it is to be written; with an id where a bot was asked about it. Of a Binary
 * no bot sees or sets the content. Errors: 400 by the bot or for what it answers, 503.
 */
export async function beforeWrite(
  interaction: Interaction,
  change: 'create' | 'update',
  resource: Resource,
  ifMatch?: WriteOptions['ifMatch'],
): Promise<Resource> {
  const { resourceType: type } = resource
  if (!mayAsk(interaction)) return resource
  const { id = randomUUIDv7() } = resource
  const sent = { ...resource, id }
  const isBinary = type === 'Binary'
  const asked = await ask(interaction, change, isBinary ? withoutContent(sent) : sent, ifMatch)
  if (asked === undefined) return resource
  const { found, target, value } = asked
  if (!isResource(value) || value.resourceType !== type || value.id !== id) return sent
  const events = interaction.services.repository.feature(createEvents)
  const answer = isBinary ? withoutContent(value) : value
  const whole = await events.withUnseen(target.session.principal, found.row, answer)
  const literal = await withLiteralReferences(interaction, whole)
  const { resource: accepted } = await acceptResource(interaction, type, literal)
  const next = { ...accepted, id }
  const path = changedBeyondRights(target.session.principal, sent, next)
  if (path !== undefined) throw refused(`The pre-commit bot has changed ${path}`, path)
  return isBinary ? withContentOf(sent, next) : next
}

/** Calls the bot before a deletion, which its answer does not change. Errors: as `beforeWrite`. */
export async function beforeDelete(
  interaction: Interaction,
  type: string,
  id: string,
  ifMatch?: WriteOptions['ifMatch'],
): Promise<void> {
  if (mayAsk(interaction)) await ask(interaction, 'delete', { resourceType: type, id }, ifMatch)
}

/** The result of a patch. */
export interface Patched {
  readonly resource: Resource
  /** The version that it was made of. */
  readonly ver: number
}

type Apply = (current: Resource) => Promise<Resource>

interface PatchedResource {
  readonly type: string
  readonly id: string
  readonly apply: Apply
  readonly options: WriteOptions
}

/** A patch that stops short of its write. Errors: those of the patch. */
export async function patched(
  { services, principal }: Interaction,
  { type, id, apply, options }: PatchedResource,
): Promise<Patched> {
  let made: Patched | undefined
  const stop = new Error('The patch is not written yet')
  const keep = async (current: Resource) => {
    made = { resource: await apply(current), ver: Number(current.meta?.versionId) }
    throw stop
  }
  await services.repository
    .patch(principal, { type, id }, keep, options)
    .catch((error: unknown) => {
      if (error !== stop) throw error
    })
  if (made === undefined) throw stop
  return made
}

interface AskedPatch {
  readonly type: string
  readonly id: string
  readonly apply: Apply
  readonly options?: WriteOptions | undefined
}

/** As `repository.patch`: what a bot was asked about is written over the version that it was made of alone. */
export async function patchAsking(
  interaction: Interaction,
  { type, id, apply, options = {} }: AskedPatch,
): Promise<WriteResult> {
  const { services, principal } = interaction
  if (!mayAsk(interaction)) {
    return services.repository.patch(principal, { type, id }, apply, options)
  }
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    const { resource, ver } = await patched(interaction, { type, id, apply, options })
    const next = await beforeWrite(interaction, 'update', { ...resource, id }, [ver])
    try {
      return await services.repository.update(principal, next, { ...options, ifMatch: [ver] })
    } catch (error) {
      const isLostRace = error instanceof HttpError && error.status === 412
      if (!isLostRace || options.ifMatch !== undefined) throw error
    }
  }
  throw conflict('Too many concurrent changes, try again')
}

interface BotAnswer {
  readonly found: PreCommit
  readonly target: BotTarget
  /** The answer of the bot. */
  readonly value: unknown
}

/** Undefined where no bot waits for it, or none that the author of its Subscription may notify. */
async function ask(
  interaction: Interaction,
  change: Change,
  resource: Resource,
  ifMatch: WriteOptions['ifMatch'],
): Promise<BotAnswer | undefined> {
  const { services, principal, request } = interaction
  const { repository, log } = services
  const skipped = (subscription: string, reason: string) =>
    log.warn({ subscription, reason }, 'A pre-commit bot was not asked')
  const { number } = principal.project
  /** Undefined for an author that has lost the right to make such Subscriptions, too. */
  const authored = async (subscription: Resource) => {
    const author = await authorOf(services, subscription, number)
    if (author !== undefined && mayWriteGuarded(author.principal, SUBSCRIPTION, 'create')) {
      return author
    }
    skipped(subscription.id ?? '', 'author')
    return undefined
  }
  const viewer = async (subscription: Resource) => (await authored(subscription))?.principal
  const found = await repository
    .feature(createEvents)
    .preCommit(principal, change, { resource, ifMatch, author: viewer, skipped })
  if (found === undefined) return undefined
  const { subscription, bot, row } = found
  const skip = (reason: string) => {
    skipped(subscription.id ?? '', reason)
    return undefined
  }
  const author = await authored(subscription)
  if (author === undefined) return undefined
  if ((await repository.feature(createEvents).seen(author.principal, row)) === undefined)
    return skip('access')
  const target = await findTarget(services, author, bot)
  if (!isTarget(target)) {
    if (target.isOff) return skip(target.text)
    throw badRequest(`The pre-commit bot cannot run: ${target.text}`)
  }
  const body = await eventBody(services, target.session.principal, row)
  if (body === undefined) return skip('access of the bot')
  const shown = found.change === 'delete' ? body : beforeContent(resource, body)
  const job = jobOf(interaction, found, { target, resource, body: shown })
  const { kind, body: text = '' } = await run(services, job, request.signal)
  return { found, target, value: kind === 'json' ? parseJson(text) : undefined }
}

/** A Binary that is not written yet has no address for its content. */
function beforeContent({ resourceType }: Resource, body: string): string {
  if (resourceType !== 'Binary') return body
  // The text of a resource, platform meta spliced in.
  return JSON.stringify(withoutContent(parseJson(body) as Resource))
}

interface AskedBot {
  readonly target: BotTarget
  readonly resource: Resource
  readonly body: string
}

function jobOf(
  { services, principal, request }: Interaction,
  { subscription, change }: PreCommit,
  { target, resource: { resourceType: type, id }, body }: AskedBot,
): ExecuteJob {
  const call = {
    services,
    principal,
    request: {
      ...request,
      method: 'POST',
      headers: { 'content-type': FHIR_JSON, [DEPTH_HEADER]: request.headers[DEPTH_HEADER] },
      body: change === 'delete' ? `{"deletedResource":${body}}` : body,
    },
    rest: '',
  }
  return {
    ...createJob(call, target, actingAs(target.session.principal)),
    deadline: Date.now() + WAIT_MS,
    headers: {
      'content-type': FHIR_JSON,
      'x-medplum-subscription': subscription.id ?? '',
      'x-medplum-interaction': change,
      ...(change === 'delete' ? { 'x-medplum-deleted-resource': `${type}/${id}` } : {}),
    },
    subscription: `${SUBSCRIPTION}/${subscription.id}`,
    isPreCommit: true,
  }
}

/** Errors: 400 when the bot fails or takes too long, 429 and 503 when it cannot run now. */
async function run(
  { queues }: Services,
  job: ExecuteJob,
  signal: AbortSignal | undefined,
): Promise<ExecuteReply> {
  const expiry = AbortSignal.timeout(WAIT_MS)
  const limit = signal === undefined ? expiry : AbortSignal.any([signal, expiry])
  // Whoever stops waiting by the signal has the run ended; its own time is never the shorter.
  const waited = queues.execute(job, { waitMs: 2 * WAIT_MS, signal: limit })
  const reply = await waited.catch((error: unknown) => {
    throw expiry.aborted ? timedOut(job) : error
  })
  if (reply === undefined) {
    await queues.cancel(job.runId, job.projectId)
    throw unavailable('Bot execution')
  }
  if (reply.status === 'ok') return reply
  if (expiry.aborted) throw timedOut(job)
  if (reply.status !== 'error') throw unavailable('Bot execution')
  throw new HttpError(400, outcome(undefined, ...issuesOf(reply.body)))
}

function timedOut({ runId }: ExecuteJob): HttpError {
  const text = `Bot timed out after ${WAIT_MS / 1000} s`
  return new HttpError(
    400,
    outcome(undefined, issue('error', 'timeout', text, { diagnostics: runId })),
  )
}

/** A bot may throw an outcome of its own making, with anything in it. */
function issuesOf(body: string | undefined): readonly Issue[] {
  const thrown: unknown = JSON.parse(body ?? '{}')
  const items: readonly unknown[] =
    isObject(thrown) && Array.isArray(thrown.issue) ? thrown.issue : []
  const issues = items.filter(isIssue)
  return issues.length > 0 ? issues : [issue('error', 'invalid', 'The bot has refused the write')]
}

function isIssue(item: unknown): item is Issue {
  if (!isObject(item) || !isObject(item.details)) return false
  const { severity, code, details, expression = [] } = item
  const texts = [severity, code, details.text, ...(Array.isArray(expression) ? expression : [0])]
  return texts.every((text) => typeof text === 'string')
}
