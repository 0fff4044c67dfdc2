/** Exports as the store does them: planned and read as a Principal. */
import type { Principal } from '../../../access/principal.ts'
import type { CopySession } from '../../../platform/postgres/copy.ts'
import { sliceOf } from '../../../platform/storage/slice.ts'
import { idOf } from '../../../store/rows/content.ts'
import { type Store, until } from '../../../store/rows/context.ts'
import { groupMembers } from '../patients/members.ts'
import { type CompartmentLines, readCompartments } from '../patients/read.ts'
import { readAsOf } from './as-of.ts'
import { deletionBundle, deletionsOf } from './deleted.ts'
import { filterOf } from './filters.ts'
import type { PlannedJob, TypeFilter } from './jobs.ts'
import type { LineSink, Part } from './part.ts'
import { type Plan, planExport } from './plan.ts'
import { readPart, type TypedPart } from './read.ts'
import { bytesOf } from './row-id.ts'
import { readShared, type SharedLines } from './shared.ts'

export interface Exports {
  /** Errors: 400, 403 for a filter that cannot be searched by. */
  check(principal: Principal, filter: TypeFilter): Promise<void>
  /** Those of the ids of Patients that the member sees, and that are members of the Group if one is given. */
  patientsIn(
    principal: Principal,
    ids: readonly string[],
    group: string | undefined,
  ): Promise<ReadonlySet<string>>
  /** May be done again from the start. Errors: the reason of `signal`. */
  plan(principal: Principal, job: PlannedJob, signal: AbortSignal): Promise<Plan>
  /** Every line of a part behind `part.after`, by type and in the order of their row ids. */
  read(
    principal: Principal,
    job: PlannedJob,
    part: Part,
    baseUrl: string,
    session: CopySession,
    lines: SharedLines,
  ): Promise<void>
  /** The same of a part of an export that is organized by patients, in the order of these. */
  readCompartments(
    principal: Principal,
    job: PlannedJob,
    part: Part,
    baseUrl: string,
    session: CopySession,
    lines: CompartmentLines,
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
    plan: (principal, job, signal) => planExport(until(store, signal), principal, job),
    async read(principal, job, part, baseUrl, session, lines) {
      const reading = { store, principal, job, baseUrl, session }
      if (part.kind === 'shared') return readShared(reading, part, lines)
      if (!hasType(part)) throw new Error('A part of an export has no type')
      return readPart(reading, part, lines)
    },
    readCompartments: (principal, job, part, baseUrl, session, lines) =>
      readCompartments(store, principal, job, part, baseUrl, session, lines),
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

export function hasType(part: Part): part is Part & { readonly type: string } {
  return part.type !== undefined
}

/** Later than anything is written. */
const FAR = new Date('9999-12-31T00:00:00Z')
