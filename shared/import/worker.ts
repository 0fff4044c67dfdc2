/** Runs imports in a worker. PostgreSQL holds the remaining work; the part of a crashed worker becomes free. */
import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { timings } from '../core/config/waits.ts'
import { badRequest, forbidden, HttpError, LeaseLost } from '../core/errors.ts'
import { activePrincipal, recordBulk } from '../export/bulk-jobs.ts'
import { backoffMs, type Loop } from '../jobs/loop.ts'
import { RELEASE, type Release, startPartQueue } from '../jobs/part-queue.ts'
import type { Connection } from '../postgres/statement.ts'
import type { Services } from '../request/services.ts'
import { PlannedCreates } from '../store/write/planned-rows.ts'
import { readAhead, readLineBatches } from './batches.ts'
import { type ImportPart, readImport, removeOldImports } from './jobs.ts'
import {
  type ImportLine,
  isRefusal,
  LateLines,
  mayFollow,
  plannedId,
  type ReadLines,
  readLines,
} from './lines.ts'
import {
  endImportPart,
  enforcePartOrder,
  failImport,
  type LeasedImportPart,
  leaseImportPart,
  notePartSize,
  PARTS,
  partLease,
  replaceManifest,
} from './parts.ts'
import { openSource, readManifest, unreadable } from './source.ts'
import { lineFailure, writeLines } from './writes.ts'

/** More would only share the same CPU. */
const AT_ONCE = 2
/** Maximum failures of a source, or of the service, without progress. */
const SOURCE_ATTEMPTS = 4
/** A day, at the longest pause. */
const ATTEMPTS = 300
const LONGEST_PAUSE_MS = 300_000

/** Looks for parts after a wake and every `lookMs`; `stop` releases running parts at the end of their batches. */
export function startImports(
  services: Services,
  lookMs = timings.sweepMs / 2,
): Pick<Loop, 'wake' | 'stop'> {
  const { database, config } = services
  const spare: Spare = { plans: [], blocks: [] }
  return startPartQueue<LeasedImportPart>(services, {
    table: PARTS,
    name: 'Imports',
    everyMs: lookMs,
    level: 'debug',
    lanes: AT_ONCE,
    onIdle(working) {
      if (working > 0) return
      spare.plans.length = 0
      spare.blocks.length = 0
    },
    toLease: partLease,
    next: leaseImportPart,
    run: (part, signal) => runPart(services, spare, part, signal),
    afterFailure: (part, error) => afterFailure(services, part, error),
    async whileIdle() {
      await removeOldImports(database, config.exportTtlHours)
      return false
    },
  })
}

async function runPart(
  services: Services,
  spare: Spare,
  part: LeasedImportPart,
  signal: AbortSignal,
): Promise<void> {
  const { config, log } = services
  if (part.type === null) {
    const inputs = await readManifest(config, part.url, signal)
    await finish(services, part, (connection) => replaceManifest(connection, part, inputs))
  } else await importPart(services, spare, part, signal)
  log.info({ job: part.job, part: part.part }, 'A part of an import has ended')
}

async function afterFailure(
  services: Services,
  part: LeasedImportPart,
  error: unknown,
): Promise<Release | undefined> {
  const { job, part: number, attempts } = part
  if (error instanceof PartTooEarly) return RELEASE
  const isLast = isRefusal(error) || isLastAttempt(part, error)
  services.log.warn(
    { job, part: number, attempts, isLast, cause: error },
    'An import was interrupted',
  )
  if (!isLast) {
    return { pauseMs: backoffMs(attempts, timings.retryMs, LONGEST_PAUSE_MS), isFailed: true }
  }
  await finishPart(services, part, isRefusal(error) ? error : unreadable(error))
  return undefined
}

function isLastAttempt({ attempts }: LeasedImportPart, error: unknown): boolean {
  const isOurs = error instanceof HttpError && error.status >= 500
  return attempts >= (isOurs ? ATTEMPTS : SOURCE_ATTEMPTS)
}

/** The next batch is prepared while PostgreSQL writes one. */
const IN_FLIGHT = 2
/** An input with more bad lines is assumed to be the wrong file. */
const MOST_FAILURES = 10_000

/** The part must run again after the earlier ones. */
class PartTooEarly extends Error {}

interface Spare {
  readonly plans: PlannedCreates[]
  readonly blocks: Buffer[]
}

/** Errors: transient ones, those of the input, LeaseLost, PartTooEarly, and the reason of `signal`. */
async function importPart(
  services: Services,
  spare: Spare,
  part: LeasedImportPart,
  signal: AbortSignal,
): Promise<void> {
  const late = new LateLines()
  const reached = { failures: 0, allNew: true }
  const lanes = openLanes(async ({ principal, release, ...read }) => {
    const written = await writeLines(services, principal, { ...part, late }, read)
    reached.failures += written.failed
    reached.allNew = written.allNew
    release()
    if (read.plans === undefined) return
    read.plans.clear()
    spare.plans.push(read.plans)
  })
  try {
    await importLines(services, { part, spare, reached, lanes, signal })
    await lanes.done()
  } catch (error) {
    await lanes.settled()
    // The source may have closed in the middle of a line.
    signal.throwIfAborted()
    if (isRefusal(error) || isLastAttempt(part, error)) {
      await writeLate(services, part, late, signal)
    }
    throw error
  }
  await writeLate(services, part, late, signal)
  await finishPart(services, part)
}

interface PartInProgress {
  readonly part: LeasedImportPart
  readonly spare: Spare
  readonly reached: { readonly failures: number; readonly allNew: boolean }
  readonly lanes: Lanes
  readonly signal: AbortSignal
}

async function importLines(
  services: Services,
  { part, spare, reached, lanes, signal }: PartInProgress,
): Promise<void> {
  const { database, config } = services
  let isInTurn = false
  const principal = await requireImportCaller(services, part)
  const type = typeFor(principal, part)
  const source = await openSource(services, principal, { url: part.url, from: part.from, signal })
  try {
    if (source.size !== undefined) await notePartSize(database, part, source.size)
    const place = { byte: part.from, line: part.nextLine }
    const batches = readLineBatches(source.chunks, place, config.maxBodyBytes, spare.blocks)
    for await (const { lines, release } of readAhead(batches)) {
      signal.throwIfAborted()
      const left = uncommittedLines(lines, part)
      if (left.length === 0) continue
      // Uses the member's current rights, not those at kick-off.
      const principal = await requireImportCaller(services, part)
      const plans = reached.allNew ? (spare.plans.pop() ?? new PlannedCreates()) : undefined
      const read = await readLines(services, principal, { type, lines: left, plans })
      const { checkReferencesOnWrite: isChecked } = principal.project
      if (!isInTurn && (isChecked || read.lines.some(({ references }) => references.length > 0))) {
        // Targets may be resources of earlier parts.
        if (await enforcePartOrder(database, part)) throw new PartTooEarly()
        isInTurn = true
      }
      // Targets may be resources of earlier lines.
      if (isChecked || read.lines.some((line) => mayFollow(type, line))) await lanes.done()
      await lanes.add({ ...read, principal, release })
      if (reached.failures > MOST_FAILURES) throw badRequest('Too many lines were refused')
    }
  } finally {
    source.close()
  }
}

/** Writes the lines whose targets were missing, or reports them; the last one goes first. */
async function writeLate(
  services: Services,
  part: LeasedImportPart,
  late: LateLines,
  signal: AbortSignal,
): Promise<void> {
  const type = part.type ?? ''
  for (const line of late.waiting) {
    signal.throwIfAborted()
    const principal = await requireImportCaller(services, part)
    const read = await readLines(services, principal, { type, lines: [line], plans: undefined })
    await writeLines(services, principal, part, read)
  }
}

function typeFor(principal: Principal, { type }: LeasedImportPart): string {
  const isOpen = type !== null && may(principal, type, 'create') && may(principal, type, 'update')
  if (!isOpen) throw forbidden()
  return type
}

/** Errors: LeaseLost when the caller is no longer a member, which fails the whole import. */
async function requireImportCaller(services: Services, part: LeasedImportPart): Promise<Principal> {
  const principal = await activePrincipal(services, part.caller)
  if (principal !== undefined) return principal
  await failImport(services.database, part.job, forbidden().outcome)
  throw new LeaseLost()
}

/** Skips lines after uncommitted ones that are already committed. */
function uncommittedLines(
  lines: readonly ImportLine[],
  { done }: LeasedImportPart,
): readonly ImportLine[] {
  return lines.filter(
    (line) => !done.some(([start, end]) => line.start >= start && line.start < end),
  )
}

interface ReadBatch extends ReadLines {
  readonly principal: Principal
  /** Call once it is written. */
  release(): void
}

interface Lanes {
  /** Waits for a slot, and for batches in flight with the same resources. Errors: of any earlier batch. */
  add(batch: ReadBatch): Promise<void>
  done(): Promise<void>
  settled(): Promise<void>
}

function openLanes(write: (batch: ReadBatch) => Promise<void>): Lanes {
  const running = new Map<Promise<void>, ReadonlySet<string>>()
  const failed: { error?: unknown } = {}
  const check = () => {
    if ('error' in failed) throw failed.error
  }
  return {
    async add(batch) {
      const ids = new Set(batch.lines.flatMap((line) => plannedId(line) ?? []))
      const overlaps = () => [...running].find(([, others]) => !others.isDisjointFrom(ids))
      for (let other = overlaps(); other !== undefined; other = overlaps()) await other[0]
      while (running.size >= IN_FLIGHT) await Promise.race(running.keys())
      check()
      const work = write(batch)
        .catch((error: unknown) => {
          failed.error ??= error
        })
        .finally(() => running.delete(work))
      running.set(work, ids)
    },
    async done() {
      await Promise.all(running.keys())
      check()
    },
    async settled() {
      await Promise.all(running.keys())
    },
  }
}

/** `failure`: why the input could not be read to its end. */
function finishPart(
  services: Services,
  part: LeasedImportPart,
  failure?: HttpError,
): Promise<void> {
  const outcome = failure && ((line: number) => lineFailure(line, failure))
  return finish(services, part, (connection) => endImportPart(connection, part, outcome))
}

/** Ends the part and writes the audit record in one transaction. */
async function finish(
  services: Services,
  { job, caller }: LeasedImportPart,
  end: (connection: Connection) => Promise<boolean>,
): Promise<void> {
  const principal = await activePrincipal(services, caller)
  await services.repository.transaction(async (transaction) => {
    const isEnd = await transaction.withConnection(end)
    if (!isEnd || principal === undefined) return
    const found = await transaction.withConnection((connection) => readImport(connection, job))
    const sum = (of: (part: ImportPart) => number) =>
      (found?.parts ?? []).reduce((total, part) => total + of(part), 0)
    await recordBulk({ repository: transaction }, principal, {
      reference: `AsyncJob/${job}`,
      step: 'completed',
      details: {
        inputs: found?.parts.length ?? 0,
        created: sum(({ created }) => created),
        updated: sum(({ updated }) => updated),
        unchanged: sum(({ unchanged }) => unchanged),
        skipped: sum(({ skipped }) => skipped),
        failed: sum(({ failed }) => failed),
      },
    })
  })
}
