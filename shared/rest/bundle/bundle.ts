/** Batch and transaction. https://hl7.org/fhir/R4/http.html#transaction */

import pLimit from 'p-limit'
import { HttpError, OffloadRequired, outcome, TransactionConflict } from '../../core/errors.ts'
import { type ResponseEntry, responseEntry } from '../../fhir/bundle.ts'
import { undoable } from '../../request/binary/content.ts'
import { charge, loadUnits } from '../../request/quota.ts'
import { type FhirContext, type FhirReply, withRepository } from '../../request/request.ts'
import type { Repository, Transaction } from '../../store/repository.ts'
import { mayAskBots, pageReply } from '../interaction.ts'
import {
  type BundleRequest,
  type EntryPlan,
  entryPath,
  groupByStage,
  type Stage,
} from './entries.ts'
import { identify, planEntry, requireDistinct, type Step } from './identities.ts'
import { type PreCommittedPlans, runPreCommitBots } from './pre-commit.ts'
import {
  createResponseBudget,
  deletions,
  failedEntry,
  type Respond,
  runEntry,
  throwIfCancelled,
  withDeadline,
} from './run.ts'

/** Errors: 400 for the bundle as a whole; in a transaction, the failure of any entry. */
export async function bundle(
  context: FhirContext,
  request: BundleRequest,
  respond: Respond,
): Promise<FhirReply> {
  const responses = await withDeadline(context, (inner, late) =>
    request.type === 'batch'
      ? runBatch({ outer: context, inner, late }, request, respond)
      : runTransaction(inner, request, respond),
  )
  const head = { type: `${request.type}-response`, links: [] } as const
  const entries = responses.map((response) => ({
    content: response.resource ?? '',
    write: () => responseEntry(response),
  }))
  return pageReply(context, head, entries)
}

/**
 * Concurrency of each stage, in order. Entries that share statements run in many lanes; others take a connection.
 * Later stages need the results of earlier ones.
 */
const LANES = { missing: 4, sharing: 256, alone: 4, twin: 4 }

/** A batch with a deadline. When `late` aborts, entries not yet started fail; `outer` is the cancellable context. */
interface TimedBatch {
  readonly outer: FhirContext
  readonly inner: FhirContext
  readonly late: AbortSignal
}

async function runBatch(
  { outer, inner: context, late }: TimedBatch,
  { entries }: BundleRequest,
  respond: Respond,
): Promise<ResponseEntry[]> {
  const responses: ResponseEntry[] = []
  const failed = ({ index }: { readonly index: number }, error: unknown) => {
    responses[index] = failedEntry(context, error, entries[index])
  }
  const room = createResponseBudget(context.services.config.maxBundleBytes)
  const plans = planEntries(context, entries, failed)
  const inside = withRepository(context, context.services.repository.batched())
  const { services, principal, request } = context
  const pay = async ({ entry }: Step) => {
    throwIfCancelled(outer)
    try {
      room.require()
      late.throwIfAborted()
      await charge(services, principal, { request, units: loadUnits(entry.route) })
      return true
    } catch (error) {
      failed(entry, error)
      return false
    }
  }
  const runPaid = async (step: Step) => {
    try {
      responses[step.entry.index] = room.fill(step, await runEntry(inside, step, respond, false))
    } catch (error) {
      failed(step.entry, error)
    }
  }
  const run = async (step: Step) => {
    if (await pay(step)) await runPaid(step)
  }
  const runMissing = async (missing: readonly Step[]) => {
    const paid: Step[] = []
    for (const step of missing) if (await pay(step)) paid.push(step)
    const made = await createMissing(inside, paid, respond)
    if (made === undefined) return pLimit(LANES.missing).map(paid, runPaid)
    for (const [i, response] of made.entries()) responses[paid[i]?.entry.index ?? 0] = response
  }
  // Each may wait for a bot in the queue.
  const asks = mayAskBots(context)
  for (const part of [plans.filter(isDeletion), plans.filter((plan) => !isDeletion(plan))]) {
    // Other entries do not match the resources that this bundle deletes.
    for (const { stage, items } of groupByStage(await identify(context, part, failed))) {
      const lanes = Map.groupBy(items, (step) => findLane(stage, step, asks))
      const missing = lanes.get('missing') ?? []
      for (let from = 0; from < missing.length && !asks; from += MOST_MISSING) {
        await runMissing(missing.slice(from, from + MOST_MISSING))
      }
      if (!asks) lanes.delete('missing')
      for (const lane of ['missing', 'sharing', 'alone', 'twin'] as const) {
        await pLimit(stage === 'operation' ? 1 : LANES[lane]).map(lanes.get(lane) ?? [], run)
      }
    }
  }
  return responses
}

function isDeletion({ entry: { route } }: EntryPlan): boolean {
  return route.kind === 'delete' || route.kind === 'conditional-delete'
}

const MOST_MISSING = 200

/** Creates missing resources in one transaction, under the locks of their criteria; undefined if any cannot be. */
async function createMissing(
  context: FhirContext,
  steps: readonly Step[],
  respond: Respond,
): Promise<readonly ResponseEntry[] | undefined> {
  const { services, principal } = context
  const conditions = steps.flatMap(({ identity }) => identity?.condition ?? [])
  const used = new Set<string>()
  const create = async (transaction: Transaction) => {
    const asked = conditions.map((condition) => ({ ...condition, sort: [] }))
    const pages = await transaction.searchMany(principal, asked)
    const areMissing = pages.every(
      (page) => page.status === 'fulfilled' && page.value.versions.length === 0,
    )
    if (!areMissing) return undefined
    const pieces = steps.map((step) => (repository: Repository) => {
      const own = { ...step, identities: { ...step.identities, used } }
      return runEntry(withRepository(context, repository), own, respond, true)
    })
    return transaction.runParallel(pieces, (_, error) => error)
  }
  const locks = { principal, conditions, oneState: false }
  const made = await services.repository.transaction(create, locks).catch(() => undefined)
  if (made !== undefined) for (const target of used) steps[0]?.identities.used.add(target)
  return made
}

function planEntries(
  context: FhirContext,
  entries: BundleRequest['entries'],
  failed: (entry: { readonly index: number }, error: unknown) => void,
): readonly EntryPlan[] {
  const hasQuestion = mayHaveConditionalReferences(context)
  return entries.flatMap((entry, index) => {
    try {
      if (entry instanceof HttpError) throw entry
      return [planEntry(context, entry, hasQuestion)]
    } catch (error) {
      failed({ index }, error)
      return []
    }
  })
}

function findLane(
  stage: Stage,
  { entry, identity, isTwin, matches }: Step,
  asks: boolean,
): keyof typeof LANES {
  if (isTwin) return 'twin'
  if (identity?.condition !== undefined && identity.isNew) return 'missing'
  if (stage === 'GET') return entry.route.kind === 'read' ? 'sharing' : 'alone'
  if (asks) return 'alone'
  if (stage === 'DELETE') return matches.length < 2 ? 'sharing' : 'alone'
  return identity === undefined ? 'alone' : 'sharing'
}

/** True when the bundle may contain conditional references; computed once because bundles are long. */
function mayHaveConditionalReferences({ request }: FhirContext): boolean {
  return request.body?.includes('?') === true
}

/** Runs a transaction. The store retries serialisation failures; every attempt starts from the bundle as sent. */
async function runTransaction(
  context: FhirContext,
  { entries }: BundleRequest,
  respond: Respond,
): Promise<ResponseEntry[]> {
  const { principal } = context
  const hasQuestion = mayHaveConditionalReferences(context)
  const plans = entries.map((entry, index) => {
    try {
      if (entry instanceof HttpError) throw entry
      return planEntry(context, entry, hasQuestion)
    } catch (error) {
      throw atEntry(index, error)
    }
  })
  const units = plans.reduce((sum, { entry }) => sum + loadUnits(entry.route), 0)
  await charge(context.services, principal, {
    request: context.request,
    units,
    whole: true,
  })
  const asked = await runPreCommitBots(context, plans, atEntry)
  const request = { ...context.request, isPreCommitted: true }
  const conditions = plans.flatMap(({ condition }) => condition ?? [])
  const { services, undo, settle } = undoable(context.services)
  try {
    const entries = await services.repository.transaction(
      async (transaction) => {
        await undo()
        const inside = withRepository({ ...context, request, services }, transaction)
        return await runAll(inside, transaction, asked, respond)
      },
      { principal, conditions, oneState: plans.some(readsMore) },
    )
    await settle()
    return entries
  } catch (error) {
    // After other failures it may be committed; the content sweep checks.
    const isRefused = error instanceof HttpError && error.status < 500
    if (isRefused || error instanceof OffloadRequired) await undo()
    throw error
  }
}

/** True for entries that read several times. Reads by id share one snapshot; writes recheck their rows. */
function readsMore({ entry }: EntryPlan): boolean {
  const { kind } = entry.route
  return !WRITES.has(kind) && kind !== 'read' && kind !== 'vread'
}

export const WRITES: ReadonlySet<string> = new Set([
  'create',
  'update',
  'patch',
  'delete',
  'conditional-update',
  'conditional-patch',
  'conditional-delete',
])

async function runAll(
  context: FhirContext,
  transaction: Transaction,
  { plans, check }: PreCommittedPlans,
  respond: Respond,
): Promise<ResponseEntry[]> {
  const changed = plans.flatMap(({ entry: { route } }) =>
    route.kind === 'update' || route.kind === 'patch' ? [route] : [],
  )
  transaction.prefetch(context.principal, changed)
  const steps = await identify(context, plans, ({ index }, error) => {
    throw atEntry(index, error)
  })
  requireDistinct(steps)
  check(steps)
  const responses: ResponseEntry[] = []
  const room = createResponseBudget(context.services.config.maxBundleBytes)
  for (const group of inGroups(steps)) {
    throwIfCancelled(context)
    const pieces = group.flatMap((step) => {
      const { index } = step.entry
      const answer = async (repository: Repository) => {
        throwIfCancelled(context)
        room.require()
        const response = await runEntry(withRepository(context, repository), step, respond, true)
        responses[index] = room.fill(step, response)
      }
      return [answer, ...deletions(context, step)].map((run) => ({ index, run }))
    })
    await transaction.runParallel(
      pieces.map(({ run }) => run),
      (i, error) => atEntry(pieces[i]?.index ?? 0, error),
    )
  }
  throwIfCancelled(context)
  return responses
}

/** Groups steps: writes share statements; twins and reads need earlier writes. */
function inGroups(steps: readonly Step[]): readonly (readonly Step[])[] {
  const writes: Step[] = []
  const twins: Step[] = []
  const operations: Step[][] = []
  const reads: Step[] = []
  for (const { stage, items } of groupByStage(steps)) {
    if (stage === 'operation') operations.push(...items.map((step) => [step]))
    else if (stage === 'search' || stage === 'GET') reads.push(...items)
    else for (const step of items) (step.isTwin ? twins : writes).push(step)
  }
  return [writes, twins, ...operations, reads].filter((group) => group.length > 0)
}

function atEntry(index: number, error: unknown): unknown {
  if (!(error instanceof HttpError) || error instanceof TransactionConflict) return error
  const issues = error.outcome.issue.map((item) => ({
    ...item,
    expression: [...new Set([entryPath(index), ...(item.expression ?? [])])],
  }))
  return new HttpError(error.status, outcome(error.outcome.id, ...issues), {
    cause: error,
    headers: error.headers,
  })
}
