/** Services, metrics and connections shared by all exports of a worker. */
import { Counter, type Registry } from 'prom-client'
import { HttpError, unavailable } from '../core/errors.ts'
import { type CopySession, type CopySessions, openCopySessions } from '../postgres/copy.ts'
import type { Services } from '../request/services.ts'
import type { Blocks } from './block.ts'
import type { Pace } from './pace.ts'

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

export type ExportMetrics = ReturnType<typeof createExportMetrics>

export function createExportMetrics(registry: Registry) {
  const registers = [registry]
  return {
    rows: new Counter({ name: 'export_rows_total', help: 'Exported lines', registers }),
    bytes: new Counter({
      name: 'export_bytes_total',
      help: 'Bytes of exported lines, plain and as they are stored',
      labelNames: ['form'],
      registers,
    }),
    retries: new Counter({
      name: 'export_parts_retried_total',
      help: 'Parts of exports that were started again',
      registers,
    }),
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
