/**
 * Updates the index of a Project to its SearchParameters, page by page. Processes with stale parameters may still
 * write for some seconds, so rows written meanwhile are derived once more afterwards.
 */
import { timings } from '../../core/config/waits.ts'
import { isResourceType, typeName, typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import { hasRows } from '../../postgres/statement.ts'
import type { StoreContext } from '../rows/context.ts'
import { ownParametersFrom, readOwnVersions, readVersions } from '../rows/custom-parameters.ts'
import { FULL_TEXT_ID } from '../rows/side-rows.ts'
import { type ReindexPosition, reindexPage } from './reindex.ts'

export interface OwnIndexProgress {
  /** Identifies the indexed parameters; another stamp restarts the job. */
  readonly stamp: string
  /** Transactions before this one may write with older parameters. */
  readonly horizon: string
  readonly types: readonly string[]
  readonly after: ReindexPosition | undefined
  readonly seen: number
  readonly total: number
  readonly late: Late
  /** The parameters are ready; only `late` is left. */
  readonly isReady: boolean
}

interface Late {
  readonly types: readonly string[]
  /** Start of the period, as PostgreSQL writes a time. */
  readonly since: string
  /** When every process has reloaded its sessions, epoch ms. */
  readonly due: number
}

/** `wait`: an earlier transaction is still open; `ready`: only `late` is left. */
type OwnIndexStep =
  | { readonly kind: 'done' }
  | { readonly kind: 'wait' | 'ready' | 'next'; readonly progress: OwnIndexProgress }

export async function indexOwnNext(
  store: StoreContext,
  project: number,
  progress: OwnIndexProgress | undefined,
  count: number,
): Promise<OwnIndexStep> {
  const state = await readState(store, project)
  const { own, missing, obsolete } = state
  if (missing.length === 0 && obsolete.length === 0) {
    if (progress?.isReady !== true) return { kind: 'done' }
    return await indexLate(store, project, { own, progress, count })
  }
  if (progress === undefined || progress.isReady || progress.stamp !== own.stamp) {
    return { kind: 'next', progress: await begin(store, project, state, progress?.late) }
  }
  if (!(await hasPassed(store, progress.horizon))) return { kind: 'wait', progress }
  const [type, ...types] = progress.types
  if (type === undefined) {
    if (own.fullText === undefined && (await forgetTexts(store, project))) {
      return { kind: 'next', progress }
    }
    await settle(store, project, state)
    const { late } = progress
    const due = Date.now() + timings.indexMs
    const rest = { types: late.types, after: undefined, isReady: true }
    return { kind: 'ready', progress: { ...progress, ...rest, late: { ...late, due } } }
  }
  const { after } = progress
  const { seen, next } = await reindexPage(store, { project, own, type, after, count })
  const rest = next === undefined ? types : progress.types
  return {
    kind: 'next',
    progress: { ...progress, types: rest, after: next, seen: progress.seen + seen },
  }
}

interface LatePage {
  readonly own: OwnParameters
  readonly progress: OwnIndexProgress
  readonly count: number
}

async function indexLate(
  store: StoreContext,
  project: number,
  { own, progress, count }: LatePage,
): Promise<OwnIndexStep> {
  const [type, ...types] = progress.types
  const { after, late } = progress
  if (type === undefined) return { kind: 'done' }
  if (Date.now() < late.due) return { kind: 'ready', progress }
  const { since } = late
  const { next } = await reindexPage(store, { project, own, type, since, after, count })
  const rest = next === undefined ? types : progress.types
  return { kind: 'next', progress: { ...progress, types: rest, after: next } }
}

interface State {
  readonly own: OwnParameters
  readonly missing: readonly string[]
  readonly obsolete: readonly string[]
}

async function readState({ connection }: StoreContext, project: number): Promise<State> {
  const versions = await readOwnVersions(connection, project)
  const { parameters = [], indexed = [], full_text = null } = versions ?? {}
  const resources = await readVersions(connection, project, parameters)
  const own = ownParametersFrom(resources, new Set(indexed), full_text)
  const stamps = [...own.types.values()].flatMap((codes) => [...codes.values()].map((p) => p.stamp))
  const wanted = new Set([...stamps, ...(full_text === null ? [] : [full_text])])
  return {
    own,
    missing: [...wanted].filter((stamp) => !indexed.includes(stamp)),
    obsolete: indexed.filter((stamp) => !wanted.has(stamp)),
  }
}

async function begin(
  store: StoreContext,
  project: number,
  state: State,
  earlier: Late | undefined,
): Promise<OwnIndexProgress> {
  const { connection } = store
  const { own, missing, obsolete } = state
  const types = new Set<string>()
  for (const [type, codes] of own.types) {
    if ([...codes.values()].some(({ stamp }) => missing.includes(stamp))) types.add(type)
  }
  const old = await readVersions(connection, project, obsolete)
  for (const { base } of old.values()) {
    for (const type of Array.isArray(base) ? base : []) {
      if (typeof type === 'string' && isResourceType(type)) types.add(type)
    }
  }
  if (missing.some(isOfText)) {
    const found = await connection.query<{ type: number }>({
      text: 'select distinct type from resource where project = $1',
      values: [project],
    })
    for (const { type } of found) types.add(typeName(type))
  }
  const [row] = await connection.query<{ horizon: string; total: number; since: string }>({
    text: `select pg_snapshot_xmax(pg_current_snapshot())::text as horizon,
      date_trunc('milliseconds', clock_timestamp())::text as since,
      (select count(*)::int from resource where project = $1 and type = any($2::smallint[])) as total`,
    values: [project, [...types].map(typeNumber)],
  })
  if (row === undefined) throw new Error('PostgreSQL answered nothing')
  const { horizon, total, since } = row
  const late = {
    types: [...types.union(new Set(earlier?.types))],
    since: earlier?.since ?? since,
    due: 0,
  }
  const place = { types: [...types], after: undefined, seen: 0 }
  return { stamp: own.stamp, horizon, total, ...place, late, isReady: false }
}

const isOfText = (stamp: string) => stamp.startsWith(FULL_TEXT_ID)

const FORGOTTEN = 5_000

/** False when none were left. */
async function forgetTexts({ connection }: StoreContext, project: number): Promise<boolean> {
  return await hasRows(connection, {
    text: `delete from resource_text where project = $1 and ctid = any(array(
      select ctid from resource_text where project = $1 limit $2)) returning 1`,
    values: [project, FORGOTTEN],
  })
}

async function hasPassed({ connection }: StoreContext, horizon: string): Promise<boolean> {
  const [row] = await connection.query<{ passed: boolean }>({
    name: 'horizon-passed',
    text: 'select pg_snapshot_xmin(pg_current_snapshot()) >= $1::xid8 as passed',
    values: [horizon],
  })
  return row?.passed === true
}

/** The scan has already replaced the rows of obsolete parameters. */
async function settle({ connection }: StoreContext, project: number, state: State): Promise<void> {
  const { missing, obsolete } = state
  await connection.query({
    text: `with gone as (delete from indexed_parameter x using unnest($2::text[]) s
        where x.project = $1 and x.id || '/' || x.ver = s and not x.id = any(
          select split_part(m, '/', 1)::uuid from unnest($3::text[]) m))
      insert into indexed_parameter (project, id, ver)
        select $1, split_part(s, '/', 1)::uuid, split_part(s, '/', 2)::int from unnest($3::text[]) s
      on conflict (project, id) do update set ver = excluded.ver`,
    values: [project, obsolete, missing],
  })
}
