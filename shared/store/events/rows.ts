/**
 * The parts of the writing statements that make events. Whether somebody waits for a change is asked of
 * `active_subscription` inside the statement that makes the change, and its rows are written by the
 * statement that writes the Subscription. So whoever writes after a Subscription was acknowledged sees
 * it, in whatever process, and no cache has to be told. Where nobody waits no row is written, and the
 * guard itself may be left out for a moment (quiet-projects.ts).
 */
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import type { Keys } from '../index/keys.ts'
import type { Bind, Listed } from '../rows/side-rows.ts'

/** What the outbox is told of a change, if somebody waits for it. */
export interface EventOrigin {
  /** JSON text of the Principal's `cause`; `{}` without one. */
  readonly cause: string
  /** Row id of the Project, for rows that are filed in the registry. */
  readonly home: string | undefined
}

export type Operation = 'c' | 'u' | 'd'

/** Changes of these tell nobody anything, or would never end telling (events.md §1.6). */
const SILENT: ReadonlySet<string> = new Set([
  'AuditEvent',
  'Login',
  'JsonWebKey',
  'AsyncJob',
  'DomainConfiguration',
])

/** Of these the end alone is told, which is their only update: not that the service keeps a record or drops it. */
const ENDING: ReadonlySet<string> = new Set(['BulkDataExport'])

const OUTBOX = 'outbox (project, type, id, ver, op, origin)'

export function makesEvents(type: string): boolean {
  return !SILENT.has(type)
}

/** Undefined for what is never an event. `projectId` is that of the resource; empty: it is in none. */
export function eventOrigin(
  keys: Keys,
  principal: Principal,
  type: string,
  projectId: string | undefined,
  operation: Operation,
): EventOrigin | undefined {
  if (!makesEvents(type) || (ENDING.has(type) && operation !== 'u')) return undefined
  const cause = JSON.stringify(principal.cause ?? {})
  if (!REGISTRY_TYPES.has(type)) return { cause, home: undefined }
  return projectId === ''
    ? undefined
    : { cause, home: projectId && keys.rowId('Project', projectId) }
}

/** `w` are the rows written, with `cause`: empty for what is no event. */
export function eventPart(op: Operation): string {
  return `o as (insert into ${OUTBOX}
    select w.project, w.type, w.id, w.ver, '${op}', w.cause from w
    where w.cause <> '' and ${isWatched('w.project')}
    returning 1)`
}

/** The same for rows of the registry, whose Project is another one than that of their row. */
export function registryEventPart(
  op: Operation,
  events: readonly Listed<EventOrigin>[],
  bind: Bind,
): string {
  const numbers = bind(`{${events.map(({ n }) => n).join(',')}}`, 'int[]')
  const homes = bind(`{${events.map(({ item }) => item.home ?? 'null').join(',')}}`, 'uuid[]')
  const causes = bind(
    events.map(({ item }) => item.cause),
    'text[]',
  )
  return `ro as (insert into ${OUTBOX}
    select t.project, w.type, w.id, w.ver, '${op}', x.cause
    from unnest(${numbers}, ${homes}, ${causes}) as x(n, home, cause)
    join w using (n) join tenant t on t.fhir_id = x.home
    where ${isWatched('t.project')}
    returning 1)`
}

/**
 * Those of a deleting statement: `now` are the deletions, `x` what was asked, with `cause`. A row of the
 * registry says in its platform meta which Project it is of.
 */
export function deletionEventPart(hasRegistry: boolean): string {
  const registry = hasRegistry
    ? `union all
      select t.project, w.type, w.id, w.ver, 'd', x.cause
      from now w join x using (project, type, id)
      join tenant t on t.fhir_id::text = ('{' || w.meta_ext || '}')::jsonb ->> 'project'
      where x.cause <> '' and x.registry and ${isWatched('t.project')}`
    : ''
  return `o as (insert into ${OUTBOX}
    select w.project, w.type, w.id, w.ver, 'd'::"char", x.cause
    from now w join x using (project, type, id)
    where x.cause <> '' and not x.registry and ${isWatched('w.project')}
    ${registry}
    returning 1)`
}

function isWatched(project: string): string {
  return `exists (select from active_subscription a
    where a.project = ${project} and a.watched = w.type)`
}

/** Nobody waits for anything in the Project of a row that is written. */
export const IS_QUIET = 'not exists (select from active_subscription a where a.project = w.project)'
