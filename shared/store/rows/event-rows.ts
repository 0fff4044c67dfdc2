/**
 * Outbox events. The statement of a change checks `active_subscription`, which the statement that writes a
 * Subscription updates: every later write in any process sees it without cache invalidation.
 */

import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Cause, Principal } from '../../access/principal.ts'
import type { ChangeKind } from '../../access/subscription.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import type { Bind } from '../../postgres/statement.ts'
import type { Keys } from '../index/keys.ts'
import type { VersionRow } from './rows.ts'
import type { Listed } from './side-rows.ts'

export interface EventOrigin {
  /** JSON text of the Principal's `cause`; `{}` without one. */
  readonly cause: string
  /** Row id of the Project, for registry rows. */
  readonly home: string | undefined
}

type Operation = 'c' | 'u' | 'd'

/** No events: nothing can subscribe to them, or each event would cause the next. */
const SILENT: ReadonlySet<string> = new Set([
  'AuditEvent',
  'Login',
  'JsonWebKey',
  'AsyncJob',
  'DomainConfiguration',
])

/** Only their update, which is their end, is an event. */
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

/** Undefined if never an event. `projectId` is that of the resource; empty: none. */
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

/** `w` are the rows written, with `cause`: empty without an event. */
export function eventPart(op: Operation): string {
  return `o as (insert into ${OUTBOX}
    select w.project, w.type, w.id, w.ver, '${op}', w.cause from w
    where w.cause <> '' and ${IS_WATCHED}
    returning 1)`
}

/** For registry rows, whose Project differs from that of their row. */
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
    from ${dialect.unnest(numbers, homes, causes)} as x(n, home, cause)
    join w using (n) join tenant t on t.fhir_id = x.home),
  ro as (insert into ${OUTBOX}
    select w.project, w.type, w.id, w.ver, '${op}', w.cause from rx w
    where ${IS_WATCHED}
    returning 1)`
}

/** Events of a deleting statement: `now` are the deletions, `x` the request, with `cause`. */
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

/** True when a Subscription waits for rows like `w`. */
const IS_WATCHED = '(w.project, w.type) in (select a.project, a.watched from active_subscription a)'

interface Resend {
  /** Row id of the only Subscription to notify. */
  readonly only?: string | undefined
  /** Each Subscription logs its decision. */
  readonly verbose?: boolean
}

export type StoredCause = Partial<Cause> & { readonly resend?: Resend }

export interface ChangeEvent {
  /** Number of the Project whose Subscriptions it concerns; registry rows are stored elsewhere. */
  readonly project: number
  readonly seq: string
  readonly change: ChangeKind
  readonly type: string
  readonly id: string
  /** Version made by the change. */
  readonly ver: number
  readonly at: Date
  /** The new version, or for a deletion the last one. */
  readonly subject: VersionRow
  /** The version before; undefined for a create. */
  readonly previous: VersionRow | undefined
  readonly cause: StoredCause
  readonly origin: string
}
