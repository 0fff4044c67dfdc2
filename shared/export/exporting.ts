/** Services, metrics, connections and pacing shared by all exports of a worker. */
import { setTimeout as delay } from 'node:timers/promises'
import { Counter, type Registry } from 'prom-client'
import { HttpError, unavailable } from '../core/errors.ts'
import { type CopySession, type CopySessions, openCopySessions } from '../postgres/copy.ts'
import type { Services } from '../request/services.ts'
import type { Blocks } from './block.ts'

export type Exporting = Services & {
  readonly metrics: ExportMetrics
  readonly copies: Pick<CopySessions, 'close'> & {
    /** `isBegun`: an earlier attempt of the part failed, possibly because of its source. */
    open(signal: AbortSignal, isBegun: boolean): Promise<CopySession>
  }
  readonly blocks: Blocks
  readonly pace: Pace
  readonly fileLimits?: FileLimits
}

export interface FileLimits {
  readonly rows: number
  readonly bytes: number
}

export interface ExportMetrics {
  /** Counts a stored and recorded block. */
  wrote(rows: number, bytes: number, packed: number): void
  retried(): void
}

export function createExportMetrics(registry: Registry): ExportMetrics {
  const registers = [registry]
  const rows = new Counter({ name: 'export_rows_total', help: 'Exported lines', registers })
  const bytes = new Counter({
    name: 'export_bytes_total',
    help: 'Bytes of exported lines, plain and as they are stored',
    labelNames: ['form'],
    registers,
  })
  const retries = new Counter({
    name: 'export_parts_retried_total',
    help: 'Parts of exports that were started again',
    registers,
  })
  return {
    wrote(count, plain, packed) {
      rows.inc(count)
      bytes.inc({ form: 'plain' }, plain)
      bytes.inc({ form: 'packed' }, packed)
    },
    retried: () => retries.inc(),
  }
}

/** Opens sessions on the primary, or on a replica that has replayed everything committed when the part began. */
export function openSources({ database, replicas }: Services): Exporting['copies'] {
  const primary = openCopySessions(database)
  const there = new Map(replicas?.all.map((one) => [one, openCopySessions(one.database)]))
  return {
    async open(signal, isBegun) {
      const replica = isBegun ? undefined : await replicas?.caughtUp()
      const sessions = replica && there.get(replica)
      if (replica === undefined || sessions === undefined) return await primary.open(signal)
      try {
        return await sessions.open(signal)
      } catch {
        signal.throwIfAborted()
        replicas?.failed(replica)
        return await primary.open(signal)
      }
    },
    async close() {
      await Promise.all([primary, ...there.values()].map((one: CopySessions) => one.close()))
    },
  }
}

/** A rest must outlast the connection's buffers (several MB), otherwise PostgreSQL keeps working through it. */
const BURST_MS = 100
const REST = 2
const LONGEST_REST_MS = 500
/** One check only sees callers that wait at that moment. */
const REMEMBERED_MS = 500

interface Pace {
  /** To be awaited now and then, by all that goes on. */
  keep(): Promise<void>
  isAwaited(): boolean
}

/** `isBusy`: callers wait for the processors that exports use. */
export function createPace(isBusy: () => boolean): Pace {
  let awaitedUntil = Number.NEGATIVE_INFINITY
  let burstAt = 0
  let resting: Promise<void> | undefined

  function isAwaited(): boolean {
    const now = performance.now()
    if (isBusy()) {
      if (now > awaitedUntil) burstAt = now
      awaitedUntil = now + REMEMBERED_MS
    }
    return now <= awaitedUntil
  }

  async function rest(ms: number): Promise<void> {
    await delay(Math.min(ms, LONGEST_REST_MS))
    resting = undefined
    burstAt = performance.now()
  }

  return {
    isAwaited,
    async keep() {
      if (isAwaited()) {
        const burst = performance.now() - burstAt
        if (burst > BURST_MS) resting ??= rest(burst * REST)
      }
      await resting
    },
  }
}

/** A permanent failure of the export. */
export class ExportAborted extends Error {
  readonly failure: { readonly status: number; readonly text: string }

  constructor(status: number, text: string) {
    super(text)
    this.failure = { status, text }
  }
}

/** Converts failures of a full or unreachable storage, after which the part is retried. Errors: 503. */
export function storageFailed(error: unknown): never {
  throw error instanceof HttpError ? error : unavailable('The storage', error)
}
