/**
 * Events of committed changes, and the parts of the writing statements that make them. The statement that makes a
 * change looks into `active_subscription` whether somebody waits for it, and the statement that writes a
 * Subscription writes the rows there. So every write after a Subscription was acknowledged sees it, in whatever
 * process, and no cache has to be invalidated. Where nobody waits no row is written, and the guard itself may be
 * left out for a moment (subscribers.ts).
 */
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Cause, Principal } from '../../access/principal.ts'
import type { Change } from '../../access/subscription.ts'
import type { Bind } from '../../postgres/statement.ts'
import type { Keys } from '../index/keys.ts'
import type { VersionRow } from './rows.ts'
import type { Listed } from './side-rows.ts'

/** The part of an outbox row that a change adds, if somebody waits for it. */
export interface EventOrigin {
  /** JSON text of the Principal's `cause`; `{}` without one. */
  readonly cause: string
  /** Row id of the Project, for rows that are filed in the registry. */
  readonly home: string | undefined
}

export type Operation = 'c' | 'u' | 'd'

/** Changes of these make no events: nobody could subscribe to them, or each event would cause the next. */
const SILENT: ReadonlySet<string> = new Set([
  'AuditEvent',
  'Login',
  'JsonWebKey',
  'AsyncJob',
  'DomainConfiguration',
])

/** The only event of these is their end, which is their only update: not that a record is created or removed. */
const ENDING: ReadonlySet<string> = new Set(['BulkDataExport'])

const OUTBOX = 'outbox (project, type, id, ver, op, origin)'

export function makesEvents(type: string): boolean {
  return !SILENT.has(type)
}

interface Origin {
  readonly type: string
  readonly projectId: string | undefined
  readonly operation: Operation
}

/** Undefined for what is never an event. `projectId` is that of the resource; empty: it is in none. */
export function eventOrigin(
  keys: Keys,
  principal: Principal,
  { type, projectId, operation }: Origin,
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
    where w.cause <> '' and ${IS_WATCHED}
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
  return `rx as (select t.project, w.type, w.id, w.ver, x.cause
    from unnest(${numbers}, ${homes}, ${causes}) as x(n, home, cause)
    join w using (n) join tenant t on t.fhir_id = x.home),
  ro as (insert into ${OUTBOX}
    select w.project, w.type, w.id, w.ver, '${op}', w.cause from rx w
    where ${IS_WATCHED}
    returning 1)`
}

/**
 * The events of a deleting statement: `now` are the deletions, `x` the request, with `cause`. The platform
 * meta of a registry row names its Project.
 */
export function deletionEventPart(hasRegistry: boolean): string {
  const registry = hasRegistry
    ? `union all
      select t.project, w.type, w.id, w.ver, x.cause
      from now w join x using (project, type, id)
      join tenant t on t.fhir_id::text = ('{' || w.meta_ext || '}')::jsonb ->> 'project'
      where x.cause <> '' and x.registry`
    : ''
  return `ox as (select w.project, w.type, w.id, w.ver, x.cause
    from now w join x using (project, type, id)
    where x.cause <> '' and not x.registry
    ${registry}),
  o as (insert into ${OUTBOX}
    select w.project, w.type, w.id, w.ver, 'd', w.cause from ox w where ${IS_WATCHED}
    returning 1)`
}

/** Somebody waits for rows like `w`. */
const IS_WATCHED = '(w.project, w.type) in (select a.project, a.watched from active_subscription a)'

/** The marks of a change that is sent again. */
interface Resend {
  /** The Subscription that it is for alone, by its row id. */
  readonly only?: string | undefined
  /** Each Subscription logs its decision. */
  readonly verbose?: boolean
}

export type StoredCause = Partial<Cause> & { readonly resend?: Resend }

/** A committed change. */
export interface ChangeEvent {
  /** Number of the Project whose Subscriptions it concerns; rows of the registry are filed elsewhere. */
  readonly project: number
  readonly seq: string
  readonly change: Change
  readonly type: string
  readonly id: string
  /** The version that the change has made. */
  readonly ver: number
  /** When. */
  readonly at: Date
  /** The version that it is about: the new one, for a deletion the last one. */
  readonly subject: VersionRow
  /** The version before; undefined for a create. */
  readonly previous: VersionRow | undefined
  readonly cause: StoredCause
  /** The cause as it is stored. */
  readonly origin: string
}
