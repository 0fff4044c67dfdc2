/** One part of an export, from where it was left until its end. */
import type { Principal } from '../../../shared/access/principal.ts'
import { rightsDigest } from '../../../shared/access/rights-digest.ts'
import { endExport, ownerOf } from '../../../shared/bulk/exports/announce.ts'
import { plainContent } from '../../../shared/bulk/exports/download.ts'
import { fileKey, manifestOf } from '../../../shared/bulk/exports/file.ts'
import { createExports, hasType } from '../../../shared/bulk/exports/rows/exports.ts'
import { filesOfPart } from '../../../shared/bulk/exports/rows/files.ts'
import {
  addIssues,
  type ExportJob,
  type PlannedJob,
  readExport,
  UNREADABLE,
  uuidOf,
} from '../../../shared/bulk/exports/rows/jobs.ts'
import {
  clearMembers,
  completeExport,
  type Ended,
  finishPart,
  finishPlan,
  renewLease,
  type TakenPart,
} from '../../../shared/bulk/exports/rows/parts.ts'
import { startExport } from '../../../shared/bulk/exports/rows/plan.ts'
import { issue } from '../../../shared/errors.ts'
import { type Slice, sliceOf } from '../../../shared/platform/storage/storage.ts'
import type { Services } from '../../../shared/services.ts'
import { LeaseLost } from '../../loop.ts'
import { type Exporting, storageFailed, writeFiles } from './writer.ts'

/** A transaction that holds the time of exports back for longer is worth a look. */
const HELD_MS = 60_000
/** Rows that cannot be read, beyond which nobody is helped by the others. */
const MOST_UNREADABLE = 1000
const MOST_UNREADABLE_SHARE = 0.01
/** So many workers are woken for a plan. */
const MOST_WAKES = 4

/** The export cannot be carried on, however often it is tried. */
export class GivenUp extends Error {
  readonly failure: { readonly status: number; readonly text: string }

  constructor(status: number, text: string) {
    super(text)
    this.failure = { status, text }
  }
}

/**
 * Answers the part that it has taken with the end of this one, if there is one. Errors: GivenUp, LeaseLost, the
 * reason of the signal, whatever PostgreSQL or the storage fail with.
 */
export async function runPart(
  services: Exporting,
  principal: Principal,
  taken: TakenPart,
  signal: AbortSignal,
): Promise<TakenPart | undefined> {
  const { kind } = taken.part
  if (rightsDigest(principal) !== taken.job.input.rights) {
    throw new GivenUp(403, 'What the member may read has changed since the export began')
  }
  switch (kind) {
    case 'plan':
      return plan(services, principal, taken, signal)
    case 'output':
    case 'shared':
      return output(services, principal, taken, signal)
    case 'deleted':
      return deleted(services, principal, taken, signal)
    case 'close':
      await close(services, principal, taken, signal)
      return undefined
    default:
      return kind satisfies never
  }
}

async function plan(
  services: Exporting,
  principal: Principal,
  { job, part }: TakenPart,
  signal: AbortSignal,
): Promise<TakenPart | undefined> {
  const { database, repository, queues, log, wake } = services
  const started = await startExport(database, job)
  if (started === undefined) throw new LeaseLost()
  const { heldMs } = started
  if (heldMs > HELD_MS) {
    log.warn({ export: job.id, heldMs }, 'An open transaction holds the time of an export back')
  }
  if (!(await clearMembers(database, job.id, part))) throw new LeaseLost()
  const planned = { ...job, state: 'active', at: started.at } as const
  const { parts, small, issues } = await repository
    .feature(createExports)
    .plan(principal, planned, signal)
  await addIssues(database, job.id, issues)
  const ended = await finishPlan(database, planned, part, { parts, taken: small })
  if (ended === undefined) throw new LeaseLost()
  const { next } = ended
  const others = parts.filter(({ n, kind }) => kind !== 'close' && n !== next?.part.n)
  if (others.length > 0) {
    wake()
    // Nothing here waits for the wake of others, whose failure is logged there.
    void queues.wake('export', Math.min(others.length, MOST_WAKES))
  }
  return next
}

async function output(
  services: Exporting,
  principal: Principal,
  taken: TakenPart,
  signal: AbortSignal,
): Promise<TakenPart | undefined> {
  const { job, part } = taken
  const { repository, database, config, copies } = services
  const first = part.type ?? part.types[0]
  if (!isPlanned(job) || first === undefined) throw new Error('A part of an export has no type')
  let type = first
  const ended = await writeFiles(services, taken, { kind: 'output', type }, async (writer) => {
    const session = await copies.open(signal, part.epoch > 1)
    try {
      const lines = {
        line: (id: Slice, line: Slice, header?: Slice, isFirst?: boolean) =>
          writer.add(id, line, header, isFirst),
        undo: () => writer.undo(),
        turn: (next: string) => {
          type = next
          writer.turn(next)
        },
        bad: async (id: Buffer, own = type) => {
          const issues = [unreadable(own, uuidOf(id))]
          if ((await addIssues(database, job.id, issues)) > MOST_UNREADABLE) throw spoilt()
        },
      }
      const { read, readCompartments } = repository.feature(createExports)
      const reading = job.input.organizedBy === undefined ? read : readCompartments
      await reading(principal, { job, part }, { baseUrl: config.baseUrl, session }, lines)
    } finally {
      await session.close()
    }
  })
  return done(services, taken, ended, signal)
}

function unreadable(type: string, rowId: string) {
  return issue('error', UNREADABLE, `A ${type} cannot be read`, { diagnostics: `Row ${rowId}` })
}

async function deleted(
  services: Exporting,
  principal: Principal,
  taken: TakenPart,
  signal: AbortSignal,
): Promise<TakenPart | undefined> {
  const { job, part } = taken
  if (!isPlanned(job) || !hasType(part)) throw new Error('A part of an export has no type')
  const ended = await writeFiles(
    services,
    taken,
    { kind: 'deleted', type: 'Bundle' },
    async (writer) => {
      await services.repository
        .feature(createExports)
        .readDeleted(principal, job, part, (id, line) => writer.add(id, line))
    },
  )
  return done(services, taken, ended, signal)
}

/** Writes the issues of the export into a file, and ends it. */
async function close(
  services: Exporting,
  principal: Principal,
  taken: TakenPart,
  signal: AbortSignal,
): Promise<void> {
  const { job } = taken
  const { config } = services
  if (job.issues.length > 0 && taken.part.after === undefined) {
    await writeFiles(
      services,
      taken,
      { kind: 'error', type: 'OperationOutcome' },
      async (writer) => {
        for (const one of job.issues) {
          const line = JSON.stringify({ resourceType: 'OperationOutcome', issue: [one] })
          await writer.add(NO_ROW, sliceOf(Buffer.from(line)))
        }
      },
    )
  }
  await makeWhole(services, taken, signal)
  const files = await manifestOf(services, job)
  const count = files.output.reduce((sum, file) => sum + file.count, 0)
  const lost = job.issues.filter(({ code }) => code === UNREADABLE).length
  if (lost > MOST_UNREADABLE_SHARE * (count + lost)) throw spoilt()
  const details = { resources: count, files: files.output.length, errors: job.issues.length }
  const record = { caller: ownerOf(principal.project, job), step: 'completed', details } as const
  const isEnd = await endExport(
    services,
    job,
    { status: 'completed', files, record },
    (connection) => completeExport(connection, job.id, taken.part, config.exportTtlHours),
  )
  if (!isEnd) throw new LeaseLost()
}

function spoilt(): GivenUp {
  return new GivenUp(500, 'Too many resources cannot be read')
}

const NO_ROW = sliceOf(Buffer.alloc(16))

/** A part of which files become objects ends here: any other did with its last block. */
async function done(
  services: Exporting,
  taken: TakenPart,
  ended: Ended | undefined,
  signal: AbortSignal,
): Promise<TakenPart | undefined> {
  if (ended !== undefined) return ended.next
  await makeWhole(services, taken, signal)
  const last = await finishPart(services.database, taken.job, taken.part)
  if (last === undefined) throw new LeaseLost()
  return last.next
}

function isPlanned(job: ExportJob): job is PlannedJob {
  return job.at !== null
}

/** Makes an object of each file of a written part. A worker that takes over makes the same. Errors: LeaseLost. */
async function makeWhole(
  { database, storage }: Services,
  { job, part }: TakenPart,
  signal: AbortSignal,
): Promise<void> {
  if (!job.input.presigned) return
  for (const file of await filesOfPart(database, job.id, part.n)) {
    const key = fileKey(job.input.projectId, job.id, part.n, file.seq)
    const content = untilAborted(plainContent(storage, job, file), signal)
    await storage.put(key, content).catch(storageFailed)
    if (await renewLease(database, job.id, part)) continue
    // An object made after the export's files are gone would stay.
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
