/** Exports as the store does them: planned and read as a Principal. */
import type { Principal } from '../../access/principal.ts'
import type { CopySession } from '../../database-copy.ts'
import { bufferOf, sliceOf } from '../../slice.ts'
import { idOf } from '../content.ts'
import type { Store } from '../context.ts'
import { alongsideSql, readAlongside } from './alongside.ts'
import { readAsOf } from './as-of.ts'
import { deletionBundle, deletionsOf } from './deleted.ts'
import { filterOf } from './filters.ts'
import type { PlannedJob, TypeFilter } from './jobs.ts'
import { groupMembers } from './members.ts'
import type { Part } from './parts.ts'
import { type Plan, planExport } from './plan.ts'
import { provenanceChoice, provenanceJudge, provenanceLines } from './provenance.ts'
import { bytesOf } from './row-id.ts'
import { changedRows, copySql, type LineSink, selectionOf, versionsSql } from './select.ts'
import { needsMeta, showOf } from './show.ts'

/** Takes the row id of what cannot be read. */
export type BadRowSink = (id: Buffer) => Promise<void>

export interface Lines {
  readonly line: LineSink
  readonly bad: BadRowSink
}

type TypedPart = Part & { readonly type: string }

export interface Exports {
  /** Errors: 400, 403 for a filter that cannot be searched by. */
  check(principal: Principal, filter: TypeFilter): Promise<void>
  /** Those of the ids of Patients that the member sees, and that are members of the Group if one is given. */
  patientsIn(
    principal: Principal,
    ids: readonly string[],
    group: string | undefined,
  ): Promise<ReadonlySet<string>>
  /** May be done again from the start. */
  plan(principal: Principal, job: PlannedJob): Promise<Plan>
  /** Every line of a part behind `part.after`, in the order of their row ids. */
  read(
    principal: Principal,
    job: PlannedJob,
    part: TypedPart,
    baseUrl: string,
    session: CopySession,
    lines: Lines,
  ): Promise<void>
  /** The same of a part of deletions, whose lines are bundles. */
  readDeleted(principal: Principal, job: PlannedJob, part: TypedPart, line: LineSink): Promise<void>
}

export function createExports(store: Store): Exports {
  return {
    async check(principal, filter) {
      await filterOf(store, principal, filter.type, [filter])
    },
    async patientsIn(principal, ids, group) {
      const members =
        group === undefined
          ? undefined
          : await groupMembers(store, principal, group, FAR, new Date())
      const own = members && new Set(members.get('Patient'))
      const among = ids.filter((id) => own?.has(id) ?? true)
      const rows = await readAsOf(store, principal, 'Patient', among, FAR)
      return new Set(rows.map(({ content }) => idOf(content ?? '')))
    },
    plan: (principal, job) => planExport(store, principal, job),
    async read(principal, job, part, baseUrl, session, { line, bad }) {
      const selection = await selectionOf(store, principal, part.type, job)
      if (selection === undefined) return
      const show = showOf(selection, job.input.elements, baseUrl)
      const choice = part.type === 'Provenance' ? provenanceChoice(job.input) : undefined
      const batches =
        choice && provenanceLines(provenanceJudge(store, principal, job, selection, choice), line)
      let low = part.after ?? part.low
      let high: string | undefined
      do {
        const range = { low, high: part.high }
        const read = await session.snapshot(async () => {
          const changed = await changedRows(store, session, selection, range)
          const among = { low, high: changed.high }
          const isAlongside = await readAlongside(session, selection, among)
          const from = isAlongside ? alongsideSql : versionsSql
          const sql = copySql(selection, among, changed.rows, from, needsMeta(selection))
          await session.copy(sql, ([rowId, content, metaExtension, ruling]) => {
            if (!rowId) throw new Error('A row has no id')
            try {
              if (!content || !metaExtension) throw new SyntaxError('A row has no content')
              const shown = show(content, metaExtension, ruling?.bytes.readInt32BE(ruling.start))
              return batches === undefined ? line(rowId, shown) : batches.add(rowId, content, shown)
            } catch (error) {
              if (error instanceof SyntaxError) return bad(Buffer.from(bufferOf(rowId)))
              throw error
            }
          })
          return changed
        })
        high = read.high
        low = high
      } while (high !== part.high)
      await batches?.end()
    },
    async readDeleted(principal, job, part, line) {
      let { after } = part
      let hasMore = true
      while (hasMore) {
        const page = await deletionsOf(store, principal, job, part.type, after)
        after = page.last
        hasMore = page.hasMore
        if (page.ids.length === 0 || after === undefined) continue
        const bundle = Buffer.from(deletionBundle(part.type, page.ids))
        await line(sliceOf(bytesOf(after)), sliceOf(bundle))
      }
    },
  }
}

/** Later than anything is written. */
const FAR = new Date('9999-12-31T00:00:00Z')
