/** Runs exports in a worker: leases a part, continues it to its end, and otherwise releases or fails it. */
import { rightsDigest } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { Cache } from '../core/cache.ts'
import { timings } from '../core/config/waits.ts'
import { type Issue, isUnavailable, LeaseLost } from '../core/errors.ts'
import { backoffMs, type Loop } from '../jobs/loop.ts'
import { endPart, type Release, renewPart, startPartQueue } from '../jobs/part-queue.ts'
import { toSlice } from '../outbound/storage/storage.ts'
import { wakeWorkers } from '../redis/wakes.ts'
import type { Services } from '../request/services.ts'
import type { StoreContext } from '../store/rows/context.ts'
import { buildManifest, endExport } from './announce.ts'
import { createBlocks } from './block.ts'
import { activePrincipal } from './bulk-jobs.ts'
import { blockKey, fileKey, plainContent } from './file.ts'
import { createPace } from './pace.ts'
import {
  deleteExportRows,
  endedExport,
  filesOfPart,
  wholeFiles,
  writtenBlocks,
} from './rows/files.ts'
import {
  addIssues,
  type ExportJob,
  failExport,
  type LineWriter,
  type PlannedJob,
  readExport,
  UNREADABLE,
} from './rows/jobs.ts'
import {
  clearMembers,
  completeExport,
  finishPlan,
  type LeasedExportPart,
  leaseExportPart,
  PARTS,
  partLease,
} from './rows/parts.ts'
import { planExport, startExport } from './rows/plan.ts'
import { readDeleted, readPart } from './rows/read.ts'
import { isListed } from './rows/select.ts'
import { failRevokedExport } from './status.ts'
import {
  ExportAborted,
  type Exporting,
  type ExportMetrics,
  openSources,
  storageFailed,
} from './worker-services.ts'
import { mostUnderWay, tooManyUnreadable, writeFiles } from './writer.ts'

const AT_ONCE = 2
const LOOK_MS = timings.sweepMs / 5
/** Failures and lost workers of a part before its export fails. */
const MOST_FAILURES = 3
const MOST_TRIES = 10
const PAUSE_MS = 1000
/** Maximum wait for PostgreSQL and storage, and maximum polling interval. */
const LONGEST_OUTAGE_MS = 24 * 3_600_000
const LONGEST_PAUSE_MS = 300_000
/** Logs a transaction that delays exports for longer. */
const HELD_MS = 60_000
const MOST_UNREADABLE_SHARE = 0.01
const waits = new Cache<string, number>({ name: 'export-waits', max: 1000 })

/** `stop` releases running parts after their current block. */
export function startExports(
  services: Services,
  metrics: ExportMetrics,
  isBusy: () => boolean,
): Pick<Loop, 'wake' | 'stop'> {
  const copies = openSources(services)
  const blocks = createBlocks(services.config.exportCompressionLevel)
  const pace = createPace(isBusy)
  const exporting: Exporting = { ...services, metrics, copies, blocks, pace }
  const queue = startPartQueue<LeasedExportPart>(services, {
    table: PARTS,
    name: 'Exports',
    everyMs: LOOK_MS,
    lanes: AT_ONCE,
    onIdle: blocks.clear,
    toLease: partLease,
    mayStart: (lane) => lane === 0 || !pace.isAwaited(),
    next: leaseExportPart,
    run: (taken, signal) => startPart(exporting, taken, signal),
    afterFailure: (taken, error) => afterFailure(services, taken, error),
    whileIdle: () => sweepExport(services),
  })
  return {
    wake: queue.wake,
    async stop() {
      await queue.stop()
      await copies.close()
    },
  }
}

async function startPart(
  services: Exporting,
  taken: LeasedExportPart,
  signal: AbortSignal,
): Promise<void> {
  const { job, part } = taken
  if (part.token > 1) services.metrics.retries.inc()
  if (part.tries > MOST_TRIES) throw new Error('It has lost its worker again and again')
  const principal = await activePrincipal(services, job.input)
  if (principal === undefined) return await failRevokedExport(services, job)
  await runPart(services, principal, taken, signal)
  waits.delete(job.id)
}

/** A leased part in work. `signal` aborts when the lease is lost or the worker stops. */
interface PartRun {
  readonly services: Exporting
  readonly principal: Principal
  readonly taken: LeasedExportPart
  readonly signal: AbortSignal
}

/** Errors: ExportAborted, LeaseLost, the signal's reason, failures of PostgreSQL and storage. */
export async function runPart(
  services: Exporting,
  principal: Principal,
  taken: LeasedExportPart,
  signal: AbortSignal,
): Promise<void> {
  const { kind } = taken.part
  if (rightsDigest(principal) !== taken.job.input.rights) {
    throw new ExportAborted(403, "The member's access has changed since the export began")
  }
  const run: PartRun = { services, principal, taken, signal }
  switch (kind) {
    case 'plan':
      return plan(run)
    case 'output':
    case 'shared':
    case 'listed':
    case 'deleted':
      return output(run)
    case 'close':
      return close(run)
    default:
      return kind satisfies never
  }
}

async function plan({ services, principal, taken, signal }: PartRun): Promise<void> {
  const { database, bus, log } = services
  const { job } = taken
  const lease = partLease(taken)
  const started = await startExport(database, job)
  if (started === undefined) throw new LeaseLost()
  const { heldMs } = started
  if (heldMs > HELD_MS) {
    log.warn({ export: job.id, heldMs }, 'An open transaction holds the time of an export back')
  }
  if (!(await clearMembers(database, lease))) throw new LeaseLost()
  const planned = { ...job, state: 'active', at: started.at } as const
  const { parts, issues } = await planExport(ownStore(services), principal, planned, signal)
  await addIssues(database, job.id, issues)
  if (!(await finishPlan(database, lease, parts))) throw new LeaseLost()
  // This lane takes the first one next; the close waits for the others.
  if (parts.length > 2) await wakeWorkers(bus, 'export')
}

async function output(run: PartRun): Promise<void> {
  const { services, principal, taken, signal } = run
  const { job, part } = taken
  const type = part.type ?? part.types[0]
  if (!isPlanned(job) || type === undefined) throw new Error('A part of an export has no type')
  const about = { store: ownStore(services), principal, job }
  if (part.kind === 'deleted') {
    await writeFiles(services, taken, { kind: 'deleted', type: 'Bundle' }, (writer) =>
      readDeleted(about, { type, after: part.after }, writer),
    )
    return await endObjects(run)
  }
  if (part.kind !== 'listed' && job.input.organizedBy === undefined && isListed(job.input)) {
    throw new ExportAborted(500, 'An earlier release planned this export: export again')
  }
  await writeFiles(services, taken, { kind: 'output', type }, async (writer) => {
    const session = await services.copies.open(signal, part.token > 1)
    try {
      await readPart({ ...about, baseUrl: services.config.baseUrl, session }, part, writer)
    } finally {
      await session.close()
    }
  })
  await endObjects(run)
}

async function close(run: PartRun): Promise<void> {
  const { services, taken } = run
  const { job, part } = taken
  if (job.issues.length > 0 && part.after === undefined) {
    const file = { kind: 'error', type: 'OperationOutcome' } as const
    await writeFiles(services, taken, file, (writer) => writeIssues(job, writer))
  }
  await makeObjects(run)
  const files = await buildManifest(services, job)
  const count = files.output.reduce((sum, file) => sum + file.count, 0)
  const isLost = ({ severity, code }: Issue) => severity === 'error' && code === UNREADABLE
  const lost = job.issues.filter(isLost).length
  if (lost > MOST_UNREADABLE_SHARE * (count + lost)) throw tooManyUnreadable()
  const { exportTtlHours } = services.config
  const isEnded = await endExport(services, job, {
    status: 'completed',
    files,
    endRow: (connection) => completeExport(connection, partLease(taken), exportTtlHours),
  })
  if (!isEnded) throw new LeaseLost()
}

function ownStore({ repository }: Services): StoreContext {
  return repository.withStore((store) => store)
}

const NO_ROW = toSlice(Buffer.alloc(16))

async function writeIssues({ issues }: ExportJob, writer: LineWriter): Promise<void> {
  for (const one of issues) {
    const line = JSON.stringify({ resourceType: 'OperationOutcome', issue: [one] })
    await writer.add(NO_ROW, toSlice(Buffer.from(line)))
  }
}

function isPlanned(job: ExportJob): job is PlannedJob {
  return job.at !== null
}

/** Ends a part with one object per file; other parts end with their last block. */
async function endObjects(run: PartRun): Promise<void> {
  const { services, taken } = run
  if (!taken.job.input.presigned) return
  await makeObjects(run)
  if (!(await endPart(services.database, PARTS, partLease(taken)))) throw new LeaseLost()
}

/** Builds one object per file of a written part; idempotent across workers. Errors: LeaseLost. */
async function makeObjects({ services, taken, signal }: PartRun): Promise<void> {
  const { database, storage } = services
  const { job, part } = taken
  if (!job.input.presigned) return
  for (const file of await filesOfPart(database, job.id, part.n)) {
    const key = fileKey(job.input.projectId, job.id, part.n, file.seq)
    const content = untilAborted(plainContent(storage, job, file), signal)
    await storage.put(key, content).catch(storageFailed)
    if (await renewPart(database, PARTS, partLease(taken))) continue
    // An object written after the removal of the files would stay forever.
    const now = await readExport(database, job.id)
    if (now === undefined || now.state === 'error') await storage.delete(key)
    throw new LeaseLost()
  }
}

async function* untilAborted(
  pieces: AsyncIterable<Buffer>,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  for await (const piece of pieces) {
    signal.throwIfAborted()
    yield piece
  }
}

async function afterFailure(
  services: Services,
  { job, part }: LeasedExportPart,
  error: unknown,
): Promise<Release | undefined> {
  const { log } = services
  if (isUnavailable(error) && Date.now() - job.requested.getTime() < LONGEST_OUTAGE_MS) {
    // Outages do not count as attempts.
    const times = (waits.get(job.id) ?? 0) + 1
    waits.set(job.id, times)
    const pauseMs = backoffMs(times, PAUSE_MS, LONGEST_PAUSE_MS)
    const level = times === 1 ? 'warn' : 'debug'
    log[level]({ export: job.id, part: part.n, pauseMs, cause: error }, 'An export waits')
    return { pauseMs, isFailed: false }
  }
  const isLast =
    error instanceof ExportAborted || part.failures + 1 >= MOST_FAILURES || part.tries > MOST_TRIES
  log.error({ export: job.id, part: part.n, isLast, err: error }, 'A part of an export failed')
  if (!isLast) return { pauseMs: PAUSE_MS, isFailed: true }
  const failure =
    error instanceof ExportAborted ? error.failure : { status: 500, text: 'The export failed' }
  const options = { keepHours: services.config.exportTtlHours, isRevoked: false }
  await endExport(services, job, {
    status: 'error',
    endRow: (connection) => failExport(connection, job.id, failure, options),
  })
  return undefined
}

/** Removes the files of an ended export. False if there is none. */
export async function sweepExport({ database, storage, log }: Services): Promise<boolean> {
  const ended = await endedExport(database)
  if (ended === undefined) return false
  const { id, projectId } = ended
  for (const { part, kind, token, last } of await writtenBlocks(database, id)) {
    // A crashed worker may have stored a few unrecorded blocks.
    for (let seq = 0; seq <= last + mostUnderWay(kind); seq++) {
      await storage.delete(blockKey(projectId, { job: id, part, token, seq }))
    }
  }
  for (const { part, seq } of await wholeFiles(database, id)) {
    await storage.delete(fileKey(projectId, id, part, seq))
  }
  await deleteExportRows(database, id)
  log.info({ export: id }, 'The files of an export are gone')
  return true
}
