/** Exports as the store does them: planned and read as a Principal. */

import { decideContents } from '../../../access/decisions/decide.ts'
import type { Principal } from '../../../access/principal.ts'
import { typeNumber } from '../../../fhir/definitions.ts'
import { binder } from '../../../platform/postgres/statement.ts'
import { sliceOf } from '../../../platform/storage/storage.ts'
import { type Store, scopeOf, until } from '../../../store/rows/context.ts'
import { idOf, type VersionRow, versionColumns } from '../../../store/rows/rows.ts'
import { groupMembers } from '../patients/members.ts'
import { type CompartmentLines, readCompartments } from '../patients/read.ts'
import { filterOf } from './filters.ts'
import {
  bytesOf,
  type ExportPart,
  type LineSink,
  type PlannedJob,
  type TypeFilter,
} from './jobs.ts'
import { type ExportPlan, planExport } from './plan.ts'
import { type Reading, readPart, readShared, type SharedLines, type TypedPart } from './read.ts'
import { readAsOf } from './scope.ts'
import { IN_COMPARTMENT, listedSql, ownSql, rangeSql, reachOf, stateTime } from './select.ts'

export interface PlannedPart {
  readonly job: PlannedJob
  readonly part: ExportPart
}

export interface Exports {
  /** Errors: 400, 403 for a filter that cannot be searched by. */
  check(principal: Principal, filter: TypeFilter): Promise<void>
  /** Returns the Patients that the member sees, and that are members of the Group if one is given. */
  patientsIn(
    principal: Principal,
    ids: readonly string[],
    group: string | undefined,
  ): Promise<ReadonlySet<string>>
  /** May be done again from the start. Errors: the reason of `signal`. */
  plan(principal: Principal, job: PlannedJob, signal: AbortSignal): Promise<ExportPlan>
  /** Every line of a part behind `part.after`, by type and in the order of their row ids. */
  read(
    principal: Principal,
    part: PlannedPart,
    source: Pick<Reading, 'baseUrl' | 'session'>,
    lines: SharedLines,
  ): Promise<void>
  /** The same of a part of an export that is organized by patients, in the order of these. */
  readCompartments(
    principal: Principal,
    part: PlannedPart,
    source: Pick<Reading, 'baseUrl' | 'session'>,
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
          : await groupMembers(store, principal, { id: group, at: FAR, on: new Date() })
      const own = members && new Set(members.get('Patient'))
      const among = ids.filter((id) => own?.has(id) ?? true)
      const rows = await readAsOf(store, principal, 'Patient', { ids: among, at: FAR })
      return new Set(rows.map(({ content }) => idOf(content ?? '')))
    },
    plan: (principal, job, signal) => planExport(until(store, signal), principal, job),
    async read(principal, { job, part }, source, lines) {
      const reading = { store, principal, job, ...source }
      if (part.kind === 'shared') return readShared(reading, part, lines)
      if (!hasType(part)) throw new Error('A part of an export has no type')
      return readPart(reading, part, lines)
    },
    readCompartments: (principal, { job, part }, source, lines) =>
      readCompartments({ store, principal, job, ...source }, part, lines),
    async readDeleted(principal, job, part, line) {
      let { after } = part
      let hasMore = true
      while (hasMore) {
        const page = await deletionsOf(store, principal, job, { type: part.type, after })
        after = page.last
        hasMore = page.hasMore
        if (page.ids.length === 0 || after === undefined) continue
        const bundle = Buffer.from(deletionBundle(part.type, page.ids))
        await line(sliceOf(bytesOf(after)), sliceOf(bundle))
      }
    },
  }
}

export function hasType(part: ExportPart): part is ExportPart & { readonly type: string } {
  return part.type !== undefined
}

/** Later than anything is written. */
const FAR = new Date('9999-12-31T00:00:00Z')

// Deletions between `_since` and the time of an export are bundles of DELETE requests. Whether a member sees one is
// decided by its last content. https://hl7.org/fhir/uv/bulkdata/STU2/export.html#deleted-array

/** Entries of a line. */
const DELETIONS_A_LINE = 100

interface Deletions {
  readonly ids: readonly string[]
  /** Row id of the last one that was looked at. */
  readonly last: string | undefined
  readonly hasMore: boolean
}

/** The next of one type behind a row id. One statement, and one more where only PostgreSQL can decide. */
async function deletionsOf(
  store: Store,
  principal: Principal,
  { id: job, at, input }: PlannedJob,
  { type, after }: { readonly type: string; readonly after: string | undefined },
): Promise<Deletions> {
  const { project, metaPrefix } = scopeOf(principal, type)
  const reach = reachOf(input)
  const { values, bind } = binder()
  const time = bind(stateTime(at, input.until), 'timestamptz')
  const own = bind(project, 'int')
  const tests = [
    `n.project = ${own}`,
    `n.type = ${bind(typeNumber(type), 'smallint')}`,
    `n.lu > ${bind(input.since, 'timestamptz')} and n.lu <= ${time}`,
    'n.content is null and v.content is not null',
    `not exists (select 1 from version o where o.project = ${own} and o.type = n.type
      and o.id = n.id and o.ver = n.ver + 1 and o.lu <= ${time})`,
    ...rangeSql('n.id', { low: after, high: undefined }, bind),
    ...(reach === 'patients' ? [IN_COMPARTMENT] : []),
    ...(reach === 'listed' ? [listedSql(job, type, bind)] : []),
    ...ownSql(metaPrefix, bind),
  ]
  const rows = await store.connection.query<VersionRow>({
    // As in select.ts: what was is looked at for what was deleted alone.
    text: `select ${versionColumns('v')} from version n cross join lateral (select v.* from version v
        where v.project = ${own} and v.type = n.type and v.id = n.id and v.ver = n.ver - 1
        offset 0) v
      where ${tests.join(' and ')} order by n.id limit ${bind(DELETIONS_A_LINE, 'int')}`,
    values,
  })
  const rulings = await decideContents(store, principal, ['search'], rows)
  const seen = rows.filter((_, i) => rulings[i]?.search !== undefined)
  return {
    ids: seen.map(({ content }) => idOf(content ?? '')),
    last: rows.at(-1)?.id,
    hasMore: rows.length === DELETIONS_A_LINE,
  }
}

function deletionBundle(type: string, ids: readonly string[]): string {
  return JSON.stringify({
    resourceType: 'Bundle',
    type: 'transaction',
    entry: ids.map((id) => ({ request: { method: 'DELETE', url: `${type}/${id}` } })),
  })
}
