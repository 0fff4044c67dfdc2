/** Writes imported resources. A rejected transaction is halved until each faulty line stands alone. */
import type { Principal } from '../access/principal.ts'
import { HttpError, LeaseLost, MissingTarget, preconditionFailed } from '../core/errors.ts'
import { SqlError } from '../postgres/sql-error.ts'
import { charge, loadUnits } from '../request/quota.ts'
import type { Services } from '../request/services.ts'
import type { WriteResult } from '../store/rows/version.ts'
import type { PlannedCreates } from '../store/write/planned-rows.ts'
import {
  asLineError,
  isRead,
  type LateLines,
  mayFollow,
  plannedId,
  type ReadLine,
  type ReadLines,
  readLines,
  resolveReferences,
  withImportedTime,
} from './lines.ts'
import { type ImportProgress, type LeasedImportPart, savePartProgress } from './parts.ts'

/** A plan failed: an id is taken, or the state has changed. */
class PlansRefused extends Error {}

interface WrittenPart extends LeasedImportPart {
  /** Receives lines with missing targets; without it they are refused. */
  readonly late?: LateLines
}

interface WrittenLines {
  failed: number
  /** Every resource was new, so planning the next lines pays off. */
  allNew: boolean
}

/** A batch of consecutive lines in work. */
interface Batch {
  readonly services: Services
  readonly principal: Principal
  readonly part: WrittenPart
  readonly written: WrittenLines
}

const NEVER = new AbortController().signal

/**
 * Writes consecutive lines and their progress in one transaction. Errors: 5xx, after which a retry is safe; LeaseLost.
 */
export async function writeLines(
  services: Services,
  principal: Principal,
  part: WrittenPart,
  { lines, plans }: ReadLines,
): Promise<WrittenLines> {
  const type = part.type ?? ''
  const units = loadUnits({ kind: 'update', type, id: '' }) * lines.length
  await charge(services, principal, { request: { mayWait: NEVER }, units, whole: true })
  const batch: Batch = { services, principal, part, written: { failed: 0, allNew: true } }
  const runs = splitRuns(type, lines)
  if (plans === undefined || plans.rows.length === 0) await writeRuns(batch, runs)
  else if (runs.length > 1 || !(await carryOut(batch, lines, plans))) {
    const read = await readLines(services, principal, { type, lines, plans: undefined })
    await writeRuns(batch, splitRuns(type, read.lines))
  }
  return batch.written
}

async function writeRuns(batch: Batch, runs: readonly (readonly ReadLine[])[]): Promise<void> {
  for (const run of runs) {
    await refuseReplaced(batch, run)
    const resolved = await resolveReferences(batch.services, batch.principal, run)
    for (const lines of withoutLate(batch.part, resolved)) {
      await writeOrHalve(batch, await withTimes(batch, lines))
    }
  }
}

/** Waiting lines stay refused when later lines replace their resources: written last, they would undo these. */
async function refuseReplaced(batch: Batch, lines: readonly ReadLine[]): Promise<void> {
  const replaced = lines.flatMap(({ id }) => batch.part.late?.take(id) ?? [])
  for (const line of replaced) await write(batch, [line])
}

/** Leaves lines with missing targets to the end of the part. Returns the consecutive others. */
function withoutLate(
  { late }: WrittenPart,
  lines: readonly ReadLine[],
): readonly (readonly ReadLine[])[] {
  const found: ReadLine[][] = [[]]
  for (const line of lines) {
    if (line.read instanceof MissingTarget && late?.add(line)) found.push([])
    else found.at(-1)?.push(line)
  }
  return found.filter(({ length }) => length > 0)
}

/** False when the state differs from the plan. */
async function carryOut(
  batch: Batch,
  lines: readonly ReadLine[],
  plans: PlannedCreates,
): Promise<boolean> {
  try {
    const resolved = await resolveReferences(batch.services, batch.principal, lines)
    if (resolved.some(({ read }) => read instanceof MissingTarget)) return false
    const timed = await withTimes(batch, resolved)
    await refuseReplaced(batch, lines)
    await write(batch, timed, plans)
    return true
  } catch (error) {
    const isRefused = error instanceof PlansRefused || error instanceof SqlError
    if (!isRefused) asLineError(error)
    return false
  }
}

/** Splits lines into runs without duplicate resources. A line that may refer to an earlier one begins a run. */
function splitRuns(type: string, lines: readonly ReadLine[]): readonly (readonly ReadLine[])[] {
  const runs: ReadLine[][] = []
  let run: ReadLine[] = []
  let ids = new Set<string>()
  for (const line of lines) {
    const id = plannedId(line)
    const isTwin = id !== undefined && ids.has(id)
    if (isTwin || (run.length > 0 && mayFollow(type, line))) {
      runs.push(run)
      run = []
      ids = new Set()
    }
    if (id !== undefined) ids.add(id)
    run.push(line)
  }
  return [...runs, run]
}

/** The result of a line whose resource exists and is skipped. */
const SKIPPED = preconditionFailed()

/** Stores the source's time, unless the resource returns to its origin. Plans already have it. */
async function withTimes(
  { services, principal, part: { type, mode } }: Batch,
  lines: readonly ReadLine[],
): Promise<readonly ReadLine[]> {
  const skips = mode === 'ifNoneMatch'
  const isAsked = ({ read, foreignTime }: ReadLine) =>
    isRead(read) && (skips || foreignTime !== undefined)
  if (!lines.some(isAsked)) return lines
  const { repository, config } = services
  const asked = lines.map((line) => ({ type: type ?? '', id: plannedId(line) ?? '' }))
  const stored = await repository.readMany(principal, asked)
  return lines.map((line, i) => {
    const { read, foreignTime } = line
    const version = stored[i]
    if (!isRead(read)) return line
    if (skips && version !== undefined) return { ...line, read: SKIPPED }
    if (foreignTime === undefined) return line
    if (version?.lastUpdated.getTime() === Date.parse(foreignTime)) return line
    return { ...line, read: withImportedTime(config, read, foreignTime) }
  })
}

async function writeOrHalve(batch: Batch, lines: readonly ReadLine[]): Promise<void> {
  if (lines.length === 0) return
  try {
    await write(batch, lines)
  } catch (error) {
    const refusal = asLineError(error)
    const writable = lines.filter((line) => plannedId(line) !== undefined)
    if (writable.length < 2) {
      const settled = lines.map((line) =>
        plannedId(line) === undefined ? line : { ...line, read: refusal },
      )
      for (const some of withoutLate(batch.part, settled)) await write(batch, some)
      return
    }
    const half = Math.ceil(lines.length / 2)
    await writeOrHalve(batch, lines.slice(0, half))
    await writeOrHalve(batch, lines.slice(half))
  }
}

async function write(
  { services, principal, part: { job, part, token, type, mode }, written }: Batch,
  lines: readonly ReadLine[],
  plans?: PlannedCreates,
): Promise<void> {
  const resources = lines.flatMap(({ read }) => (isRead(read) ? [read] : []))
  const planned = plans?.rows.length ?? 0
  const refused = lines.flatMap(({ number, read }) =>
    read instanceof HttpError ? [{ number, read }] : [],
  )
  // In this mode the only precondition is existence, so 412 means that the resource exists.
  const isSkipped = (error: HttpError) => mode === 'ifNoneMatch' && error.status === 412
  const failures = refused.flatMap(({ number, read }) =>
    isSkipped(read) ? [] : [{ line: number, outcome: lineFailure(number, read) }],
  )
  const first = lines[0]
  const last = lines.at(-1)
  if (first === undefined || last === undefined) return
  const options = { keepId: true, onlyIfAbsent: mode === 'ifNoneMatch' }
  const created = await services.repository.transaction(async (transaction) => {
    // Pipelined with the statements below.
    const carriedOut =
      plans === undefined ? Promise.resolve(true) : transaction.createPlanned(principal, plans)
    // A later line may fail and be reported first.
    carriedOut.catch(() => undefined)
    transaction.prefetch(
      principal,
      resources.map(({ id = '' }) => ({ type: type ?? '', id })),
    )
    const results = await transaction.runParallel<WriteResult>(
      resources.map((resource) => (inner) => inner.update(principal, resource, options)),
      (_, error) => error,
    )
    const count = (outcome: WriteResult['outcome']) =>
      results.filter((result) => result.outcome === outcome).length
    const progress: ImportProgress = {
      job,
      part,
      token,
      bytes: [first.start, last.end],
      lines: [first.firstNumber, last.number + 1],
      created: count('created') + planned,
      updated: count('updated'),
      unchanged: count('unchanged'),
      skipped: refused.length - failures.length,
      failures,
    }
    const advanced = transaction.withConnection((connection) =>
      savePartProgress(connection, progress),
    )
    const [isWritten, isOurs] = await Promise.all([carriedOut, advanced])
    if (!isWritten) throw new PlansRefused()
    if (!isOurs) throw new LeaseLost()
    return progress.created
  })
  written.failed += failures.length
  written.allNew &&= created === resources.length + planned
}

/** A line of an error file. */
export function lineFailure(line: number, { outcome }: HttpError): string {
  const issue = outcome.issue.map((item) => ({
    ...item,
    diagnostics:
      item.diagnostics === undefined ? `Line ${line}` : `Line ${line}: ${item.diagnostics}`,
  }))
  return JSON.stringify({ resourceType: 'OperationOutcome', issue })
}
