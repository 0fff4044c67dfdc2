/** Exports as the store does them: planned and read as a Principal. */
import type { Principal } from '../../access/principal.ts'
import type { CopySession } from '../../database-copy.ts'
import type { Store } from '../context.ts'
import type { ExportJob } from './jobs.ts'
import type { Part } from './parts.ts'
import { type Plan, planExport, stateTime } from './plan.ts'
import { changedRows, copySql, reachOf, selectionOf } from './select.ts'
import { showOf } from './show.ts'

/** Takes a row id and its line, which are its own only until it returns; a promise: no more until then. */
export type LineSink = (id: Buffer, line: Buffer) => Promise<void> | undefined

export interface Exports {
  /** May be done again from the start. */
  plan(principal: Principal, job: ExportJob, at: Date): Promise<Plan>
  /** Every line of a part behind `part.after`, in the order of their row ids. */
  read(
    principal: Principal,
    job: ExportJob & { readonly at: Date },
    part: Part & { readonly type: string },
    baseUrl: string,
    session: CopySession,
    sink: LineSink,
  ): Promise<void>
}

export function createExports(store: Store): Exports {
  return {
    plan: (principal, job, at) => planExport(store, principal, job, stateTime(at, job.input.until)),
    async read(principal, { id, at, input }, part, baseUrl, session, sink) {
      const selection = selectionOf(store, principal, part.type, {
        job: id,
        reach: reachOf(input),
        at: stateTime(at, input.until),
        since: input.since === undefined ? undefined : new Date(input.since),
      })
      if (selection === undefined) return
      const show = showOf(selection, baseUrl)
      let low = part.after ?? part.low
      let high: string | undefined
      do {
        const range = { low, high: part.high }
        const read = await session.snapshot(async () => {
          const changed = await changedRows(store, session, selection, range)
          const sql = copySql(selection, { low, high: changed.high }, changed.rows)
          await session.copy(sql, ([rowId, content, metaExtension, ruling]) => {
            if (!rowId || !content || !metaExtension) throw new Error('A row has no content')
            return sink(rowId, show(content, metaExtension, ruling?.readInt32BE(0)))
          })
          return changed
        })
        high = read.high
        low = high
      } while (high !== part.high)
    },
  }
}
