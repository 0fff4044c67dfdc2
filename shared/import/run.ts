/** Runs imports in a worker. PostgreSQL holds the remaining work; the part of a crashed worker becomes free. */
import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { timings } from '../core/config/waits.ts'
import { badRequest, forbidden, HttpError } from '../core/errors.ts'
import { recordBulk } from '../export/announce.ts'
import { activePrincipal } from '../export/status.ts'
import { backoffMs, type Loop, startLoop, withLease } from '../jobs/loop.ts'
import type { Connection } from '../postgres/statement.ts'
import type { Services } from '../request/services.ts'
import { PlannedCreates } from '../store/write/planned-rows.ts'
import { readAhead, readLineBatches } from './batches.ts'
import { type ImportPart, readImport, removeOldImports } from './imports.ts'
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
  endPart,
  enforcePartOrder,
  failImport,
  type LeasedImportPart,
  leaseImportPart,
  notePartSize,
  releasePart,
  renewLease,
  replaceManifest,
} from './parts.ts'
import { openSource, readManifest, unreadable } from './source.ts'
import { ImportLeaseLost, lineFailure, writeLines } from './writes.ts'

/** More would only share the same CPU. */
const AT_ONCE = 2
const RENEW_MS = 5000
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
  const { database, config, log } = services
  const spare: Spare = { plans: [], blocks: [] }
  const onRest = (working: number) => {
    if (working > 0) return
    spare.plans.length = 0
    spare.blocks.length = 0
  }
  const options = { log, name: 'Imports', everyMs: lookMs, level: 'debug' } as const
  const loop = startLoop({ ...options, lanes: AT_ONCE, onRest }, async (signal) => {
    const part = await leaseImportPart(database)
    if (part === undefined) return false
    // More parts may be waiting.
    loop.wake()
    await runPart(services, spare, part, signal)
    return true
  })
  const purging = startLoop({ ...options, name: 'Removal of old imports' }, async () => {
    await removeOldImports(database, config.exportTtlHours)
    return false
  })
  return {
    wake: loop.wake,
    async stop() {
      await Promise.all([loop.stop(), purging.stop()])
    },
  }
}

async function runPart(
  services: Services,
  spare: Spare,
  part: LeasedImportPart,
  stop: AbortSignal,
): Promise<void> {
  const { database, config, log } = services
  const { job, part: number } = part
  const lease = { log, everyMs: RENEW_MS, renew: () => renewLease(database, part) }
  await withLease(lease, stop, async (signal) => {
    try {
      if (part.type === null) {
        const inputs = await readManifest(config, part.url, signal)
        await finish(services, part, (connection) => replaceManifest(connection, part, inputs))
      } else {
        await importPart(services, spare, part, signal)
      }
      if (signal.aborted) await releasePart(database, part, 0)
      log.info({ job, part: number, given: signal.aborted ? 'back' : 'up' }, 'A part of an import')
    } catch (error) {
      const isLeft = signal.aborted || error instanceof PartTooEarly
      if (isLeft) await releasePart(database, part, 0)
      else await afterFailure(services, part, error)
    }
  })
}

async function afterFailure(
  services: Services,
  part: LeasedImportPart,
  error: unknown,
): Promise<void> {
  const { database, log } = services
  const { job, part: number, attempts } = part
  if (error instanceof ImportLeaseLost) return
  const isLast = isLastAttempt(part, error)
  log.warn({ job, part: number, attempts, isLast, cause: error }, 'An import was interrupted')
  if (!isLast && !isRefusal(error)) {
    const pauseMs = backoffMs(attempts, timings.retryMs, LONGEST_PAUSE_MS)
    return await releasePart(database, part, pauseMs)
  }
  await finishPart(services, part, isRefusal(error) ? error : unreadable(error))
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

/** Errors: transient ones; ImportLeaseLost; PartTooEarly. Returns early when `signal` aborts. */
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
    if (signal.aborted) return
    if (isRefusal(error) || isLastAttempt(part, error)) {
      await writeLate(services, part, late, signal)
    }
    throw error
  }
  await writeLate(services, part, late, signal)
  if (!signal.aborted) await finishPart(services, part)
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
      if (signal.aborted) break
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
    if (signal.aborted) return
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

/** Errors: ImportLeaseLost when the caller is no longer a member, which fails the whole import. */
async function requireImportCaller(services: Services, part: LeasedImportPart): Promise<Principal> {
  const principal = await activePrincipal(services, part.caller)
  if (principal !== undefined) return principal
  await failImport(services.database, part.job, forbidden().outcome)
  throw new ImportLeaseLost()
}

/** Skips lines that are already committed behind uncommitted ones. */
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
  return finish(services, part, (connection) => endPart(connection, part, outcome))
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
