/**
 * Pre-commit bots see a write before anything is locked or stored, and may replace the body. The future version is
 * composed like the write does, and authorised like a stored one.
 */
import { randomUUIDv7 } from 'node:crypto'
import { decideContents, hiddenBy, readDecided } from '../access/decisions/decide.ts'
import { readonlyBy } from '../access/decisions/decide-write.ts'
import { fieldsNotCreated, hiddenFields, keep, keptFields } from '../access/fields/fields.ts'
import { changedBeyondRights } from '../access/guarded/rights.ts'
import { keepPaths } from '../access/paths.ts'
import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { type ChangeKind, isExemptFromPreCommit, SUBSCRIPTION } from '../access/subscription.ts'
import {
  type BotTarget,
  findTarget,
  isBotTarget,
  resolveAuthorSession,
  toActing,
} from '../bots/bot.ts'
import { createJob } from '../bots/execute.ts'
import {
  badRequest,
  forbiddenByPlatform,
  HttpError,
  type Issue,
  issue,
  OffloadRequired,
  outcome,
  preconditionFailed,
  unavailable,
} from '../core/errors.ts'
import { LOST, retryOnConflict } from '../core/retry.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { parseJson } from '../fhir/json.ts'
import { asArray, isObject, isResource, type Meta, type Resource } from '../fhir/resource.ts'
import type { Session } from '../identity/principals.ts'
import type { ExecuteJob, ExecuteReply } from '../queue/jobs.ts'
import { withoutContent, withStoredContent } from '../request/binary/content.ts'
import { FHIR_JSON } from '../request/reply.ts'
import { DEPTH_HEADER, type FhirContext } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import type { StoreContext } from '../store/rows/context.ts'
import { readOwnParameters } from '../store/rows/custom-parameters.ts'
import { parseVersion, toVersion, type VersionRow } from '../store/rows/rows.ts'
import { readWatches } from '../store/rows/subscribers.ts'
import type { WriteOptions, WriteResult } from '../store/rows/version.ts'
import type { WritePlace } from '../store/rows/write-rows.ts'
import { accountsGiven, mayWriteGuarded } from '../store/write/authorize.ts'
import { prepare, writtenRow } from '../store/write/prepare.ts'
import { matchesCriteria, matchesForViewer, toCandidate } from '../subscriptions/event-match.ts'
import { eventBody, visibleVersion } from '../subscriptions/events.ts'
import { withLiteralReferences } from './conditional-references.ts'
import { acceptResource, mayAskBots } from './interaction.ts'

const WAIT_MS = 5000
/** Attempts at a patch that conflicts with concurrent changes. */
const ATTEMPTS = 3

/** Has an id if a bot ran. Bots neither see nor set Binary content. Errors: 400 from the bot, 503. */
export async function beforeWrite(
  context: FhirContext,
  change: 'create' | 'update',
  resource: Resource,
  ifMatch?: WriteOptions['ifMatch'],
): Promise<Resource> {
  const { resourceType: type } = resource
  if (!mayAskBots(context)) return resource
  const { id = randomUUIDv7() } = resource
  const sent = { ...resource, id }
  const isBinary = type === 'Binary'
  const shown = isBinary ? withoutContent(sent) : sent
  const asked = await ask(context, { change, resource: shown, ifMatch })
  if (asked === undefined) return resource
  const { row, target, value } = asked
  if (!isResource(value) || value.resourceType !== type || value.id !== id) return sent
  const answer = isBinary ? withoutContent(value) : value
  const whole = await context.services.repository.withStore((store) =>
    withUnseen(store, target.session.principal, row, answer),
  )
  const literal = await withLiteralReferences(context, whole)
  const { resource: accepted } = await acceptResource(context, type, literal)
  const next = { ...accepted, id }
  const path = changedBeyondRights(target.session.principal, sent, next)
  if (path !== undefined) throw forbiddenByPlatform(`The pre-commit bot has changed ${path}`, path)
  return isBinary ? withStoredContent(sent, next) : next
}

/** Runs the bot before a deletion; its result is ignored. Errors: as `beforeWrite`. */
export async function beforeDelete(
  context: FhirContext,
  type: string,
  id: string,
  ifMatch?: WriteOptions['ifMatch'],
): Promise<void> {
  const resource = { resourceType: type, id }
  if (mayAskBots(context)) await ask(context, { change: 'delete', resource, ifMatch })
}

interface Patch {
  readonly type: string
  readonly id: string
  readonly apply: (current: Resource) => Promise<Resource>
  readonly options?: WriteOptions | undefined
}

/** Returns the result of a patch without writing it, and its base version. Errors: those of the patch. */
export async function dryRunPatch(
  { services, principal }: FhirContext,
  { type, id, apply, options = {} }: Patch,
): Promise<{ readonly resource: Resource; readonly ver: number }> {
  const version = await services.repository.read(principal, type, id)
  const { ifMatch, mainThreadLimit = Number.POSITIVE_INFINITY, check } = options
  if (ifMatch && !ifMatch.includes(version.ver)) throw preconditionFailed()
  await check?.(version)
  if ((version.content?.length ?? 0) > mainThreadLimit) throw new OffloadRequired()
  return { resource: await apply(parseVersion(version)), ver: version.ver }
}

/** Like `repository.patch`; a result seen by a bot is written over its base version only. */
export async function patchWithPreCommit(context: FhirContext, patch: Patch): Promise<WriteResult> {
  const { services, principal } = context
  const { type, id, apply, options = {} } = patch
  const { repository } = services
  if (!mayAskBots(context)) return repository.patch(principal, { type, id }, apply, options)
  const attempt = async () => {
    const { resource, ver } = await dryRunPatch(context, patch)
    const next = await beforeWrite(context, 'update', { ...resource, id }, [ver])
    try {
      return await repository.update(principal, next, { ...options, ifMatch: [ver] })
    } catch (error) {
      const isLostRace = error instanceof HttpError && error.status === 412
      if (!isLostRace || options.ifMatch !== undefined) throw error
      return LOST
    }
  }
  return retryOnConflict(attempt, { attempts: ATTEMPTS })
}

/** A write that a bot may review. The resource has an id; for a deletion, only type and id. */
interface AskedWrite {
  readonly change: ChangeKind
  readonly resource: Resource
  readonly ifMatch: WriteOptions['ifMatch']
}

/** A version to be written; an update of an unknown id is a create. */
interface Composed {
  readonly change: ChangeKind
  readonly row: VersionRow
}

interface FoundBot extends Composed {
  readonly subscription: Resource
  readonly author: Session
  readonly bot: string
}

interface BotAnswer {
  readonly row: VersionRow
  readonly target: BotTarget
  readonly value: unknown
}

/** Returns undefined when no bot subscribes to the write, or its Subscription's author may not notify it. */
async function ask(context: FhirContext, asked: AskedWrite): Promise<BotAnswer | undefined> {
  const { services, request } = context
  const { resource } = asked
  if (isExemptFromPreCommit(resource.resourceType)) return undefined
  const { repository } = services
  const found = await repository.withStore((store) => findBot(store, context, asked))
  if (found === undefined) return undefined
  const { author, row } = found
  const skip = (reason: string) => logSkipped(services, found.subscription, reason)
  if (
    (await repository.withStore((store) => visibleVersion(store, author.principal, row))) ===
    undefined
  )
    return skip('access')
  const target = await findTarget(services, author, found.bot)
  if (!isBotTarget(target)) {
    if (target.isDisabled) return skip(target.text)
    throw badRequest(`The pre-commit bot cannot run: ${target.text}`)
  }
  const body = await eventBody(services, target.session.principal, row)
  if (body === undefined) return skip('access of the bot')
  // An unwritten Binary has no URL for its content. The text is a resource.
  const isBare = resource.resourceType === 'Binary' && found.change !== 'delete'
  const shown = isBare ? JSON.stringify(withoutContent(parseJson(body) as Resource)) : body
  const job = botJob(context, found, { target, resource, body: shown })
  const { kind, body: text = '' } = await run(services, job, request.signal)
  return { row, target, value: kind === 'json' ? parseJson(text) : undefined }
}

function logSkipped({ log }: Services, { id }: Resource, reason: string): undefined {
  log.warn({ subscription: id, reason }, 'A pre-commit bot was not asked')
  return undefined
}

async function findBot(
  store: StoreContext,
  { services, principal }: FhirContext,
  asked: AskedWrite,
): Promise<FoundBot | undefined> {
  const { connection, watchers } = store
  const { resourceType: type } = asked.resource
  const { number: project } = principal.project
  const at = new Date()
  const watches = await readWatches(connection, [{ project, type, at }])
  const stored = watches.filter(({ isStored }) => isStored)
  if (stored.length === 0) return undefined
  const own = await readOwnParameters(store.ownParameters, connection, principal, project)
  let made: Composed | undefined
  for (const watch of stored) {
    // PostgreSQL's clock may be ahead.
    const time = watch.since > at ? watch.since : at
    const watcher = await watchers.at(connection, watch, time, own)
    const bot = watcher?.terms.hook?.bot
    if (!watcher?.terms.isPreCommit || bot === undefined) continue
    made ??= await compose(store, principal, asked, own)
    if (made === undefined) return undefined
    const { change, row } = made
    const { subscription, terms } = watcher
    const candidate = toCandidate(
      store,
      { change, type, subject: row, previous: undefined, at },
      own,
    )
    try {
      if (!(await matchesCriteria(store, candidate, watcher))) continue
      const author = await authorFor(services, subscription, project)
      if (author === undefined) logSkipped(services, subscription, 'author')
      else if (
        await matchesForViewer(store, author.principal, { change, row, previous: undefined }, terms)
      )
        return { ...made, subscription, author, bot }
    } catch (error) {
      if (!(error instanceof HttpError) || error.status >= 500) throw error
      logSkipped(services, subscription, error.message)
    }
  }
  return undefined
}

/** Returns undefined if the author may no longer create such Subscriptions. */
async function authorFor(
  services: Services,
  subscription: Resource,
  project: number,
): Promise<Session | undefined> {
  const author = await resolveAuthorSession(services, subscription, project)
  return author && mayWriteGuarded(author.principal, SUBSCRIPTION, 'create') ? author : undefined
}

async function compose(
  store: StoreContext,
  principal: Principal,
  { change, resource, ifMatch }: AskedWrite,
  own: OwnParameters | undefined,
): Promise<Composed | undefined> {
  const { resourceType: type, id = '' } = resource
  const { isSuperAdmin, project } = principal
  const before =
    change === 'create'
      ? undefined
      : await readDecided(store, principal, type, { id, interactions: ['read', change] })
  const made = (next: Resource, stored: Resource | undefined, place: WritePlace): Composed => ({
    change: stored === undefined ? 'create' : 'update',
    row: writtenRow(
      prepare({ store, principal, resource: next, place, stored, options: {} }),
      new Date(),
    ),
  })
  if (before === undefined) {
    const isMade = change === 'create' || isSuperAdmin || project.updateAsCreate
    const isElsewhere = isSuperAdmin && (resource.meta?.project ?? project.id) !== project.id
    if (change === 'delete' || !isMade || isElsewhere || !may(principal, type, 'create')) {
      return undefined
    }
    const next = keep(resource, undefined, fieldsNotCreated(principal, type))
    return made(next, undefined, {
      kind: 'insert',
      project: project.number,
      projectId: project.id,
      id,
      ver: 1,
      own,
      after: undefined,
      accounts: accountsGiven(principal, type),
    })
  }
  const { row, decisions } = before
  const { read, [change]: changing } = decisions
  const { project: projectId } = JSON.parse(`{${row.meta_ext}}`) as Meta
  if (read === undefined || changing === undefined || projectId !== project.id) return undefined
  const isLive = row.content !== null
  if (ifMatch !== undefined && !(isLive && ifMatch.includes(row.ver))) return undefined
  if (change === 'delete') return isLive ? { change, row } : undefined
  const live = isLive ? parseVersion(toVersion(row)) : undefined
  const unseen = [...hiddenBy(read), ...hiddenBy(changing), ...readonlyBy(changing)]
  const next = keepPaths(keep(resource, live, keptFields(principal, type)), live, unseen)
  const { project: number, ver, lu: after } = row
  const kind = isLive ? 'update' : 'insert'
  return made(next, live, { kind, project: number, projectId, id, ver: ver + 1, after, own })
}

/** Merges the caller's changes with elements hidden from the caller. */
async function withUnseen(
  store: StoreContext,
  principal: Principal,
  row: VersionRow,
  next: Resource,
): Promise<Resource> {
  const whole = parseVersion(toVersion(row))
  const [decisions] = await decideContents(store, principal, ['read'], [row])
  const kept = keep(next, whole, hiddenFields(principal, next.resourceType))
  return keepPaths(kept, whole, hiddenBy(decisions?.read))
}

interface AskedBot {
  readonly target: BotTarget
  readonly resource: Resource
  readonly body: string
}

function botJob(
  { services, principal, request }: FhirContext,
  { subscription, change }: FoundBot,
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
    ...createJob(call, target, toActing(target.session.principal)),
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

/** Errors: 400 when the bot fails or times out, 429 and 503 when it cannot run now. */
async function run(
  { queues }: Services,
  job: ExecuteJob,
  signal: AbortSignal | undefined,
): Promise<ExecuteReply> {
  const expiry = AbortSignal.timeout(WAIT_MS)
  const limit = signal === undefined ? expiry : AbortSignal.any([signal, expiry])
  // The signal ends the wait and the run first; this timeout is longer.
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
  throw new HttpError(400, outcome(undefined, ...thrownIssues(reply.body)))
}

function timedOut({ runId }: ExecuteJob): HttpError {
  const text = `Bot timed out after ${WAIT_MS / 1000} s`
  const fault = issue('error', 'timeout', text, { diagnostics: runId })
  return new HttpError(400, outcome(undefined, fault))
}

/** A bot may throw its own OperationOutcome with arbitrary content. */
function thrownIssues(body: string | undefined): readonly Issue[] {
  const thrown: unknown = JSON.parse(body ?? '{}')
  const issues = (isObject(thrown) ? asArray(thrown.issue) : []).filter(isIssue)
  return issues.length > 0 ? issues : [issue('error', 'invalid', 'The bot has refused the write')]
}

function isIssue(item: unknown): item is Issue {
  if (!isObject(item) || !isObject(item.details)) return false
  const { severity, code, details, expression = [] } = item
  const texts = [severity, code, details.text, ...(Array.isArray(expression) ? expression : [0])]
  return texts.every((text) => typeof text === 'string')
}
