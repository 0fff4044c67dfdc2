/**
 * Creates many resources of one type in one statement of fixed shape, so one plan fits any number.
 *
 *   lists  id       of the resources, with their dates, texts and key offsets
 *          key      of all resources, one after the other
 *          string…  side rows: the number of the resource, from 1, then the columns
 */

import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { getOrInsert } from '../../core/cache.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Resource } from '../../fhir/resource.ts'
import type { Statement } from '../../postgres/statement.ts'
import type { IndexRows } from '../index/indexes.ts'
import type { StoreContext, WritePart } from '../rows/context.ts'
import { readOwnParameters } from '../rows/custom-parameters.ts'
import { eventPart } from '../rows/event-rows.ts'
import {
  compareRanges,
  compareStrings,
  contentSql,
  distinct,
  holdAccounts,
  INTO,
  lexemesSql,
} from '../rows/side-rows.ts'
import { WireList, type WireType } from '../rows/wire-list.ts'
import { type CheckedReference, requireRunLease, type Write } from '../rows/write-rows.ts'
import { authorizeCreate } from './authorize.ts'
import { prepareDecided } from './write.ts'

/** With `isHeld` the transaction must not commit. */
interface PlannedAnswer {
  /** A patient of one of them holds accounts, which it should inherit. */
  readonly isHeld: boolean
  readonly hasEvents: boolean
}

const LISTS = {
  tail: 'text',
  metaExtension: 'text',
  key: 'bigint',
  head: 'text',
  stringValue: 'text',
  stringParameter: 'bigint',
  stringOf: 'int',
  id: 'uuid',
  dateLow: 'timestamptz',
  dateHigh: 'timestamptz',
  nref: 'smallint',
  keyFirst: 'int',
  keyLast: 'int',
  metaAt: 'int',
  rangeOf: 'int',
  rangeParameter: 'bigint',
  rangeLow: 'float8',
  rangeHigh: 'float8',
  rangeUnit: 'bigint',
  codeParameter: 'bigint',
  codeKey: 'bigint',
  codeSystem: 'text',
  codeCode: 'text',
  codeDisplay: 'text',
  wordsOf: 'int',
  narrative: 'text',
  content: 'text',
  partRow: 'text',
  patient: 'uuid',
} as const satisfies Record<string, WireType>

type ListName = keyof typeof LISTS

type Common = Pick<Write, 'project' | 'type' | 'author'> & { readonly cause: string }

class PlannedRows {
  #common: Common | undefined
  readonly #lists = Object.fromEntries(
    Object.entries(LISTS).map(([name, type]) => [name, new WireList(type)]),
  ) as Record<ListName, WireList>
  readonly #codes = new Set<bigint>()
  readonly #patients = new Set<string>()

  get length(): number {
    return this.#lists.id.length
  }

  get codes(): Iterable<bigint> {
    return this.#codes
  }

  clear(): void {
    this.#common = undefined
    for (const name of LIST_NAMES) this.#lists[name].clear()
    this.#codes.clear()
    this.#patients.clear()
  }

  /** False, adding nothing, for a write that needs other rows or differs from the rest. */
  add(write: Write): boolean {
    const { rows, text, parts } = write
    const common = commonColumns(write)
    if (rows === undefined || common === undefined || !this.#fits(common)) return false
    this.#addResource(write, rows)
    this.#addSides(rows)
    for (const patient of write.patientIds) {
      if (this.#patients.has(patient)) continue
      this.#patients.add(patient)
      this.#lists.patient.uuid(patient)
    }
    if (text !== undefined) {
      this.#lists.wordsOf.int(this.length)
      this.#lists.narrative.text(text.narrative)
      this.#lists.content.text(text.content)
    }
    for (const { row } of parts) this.#lists.partRow.text(JSON.stringify(row))
    return true
  }

  statement(parts: readonly WritePart[]): Statement {
    const { project = 0, type = 0, author = null, cause = '' } = this.#common ?? {}
    const lists = LIST_NAMES.map((name) => this.#lists[name].value)
    return {
      name: 'planned-creates',
      hasBlocks: true,
      text: statementText(parts),
      values: [project, type, author, cause, ...lists],
    }
  }

  #fits(common: Common): boolean {
    this.#common ??= common
    const { project, type, author, cause } = this.#common
    return (
      project === common.project &&
      type === common.type &&
      author === common.author &&
      cause === common.cause
    )
  }

  #addResource(write: Write, rows: IndexRows): void {
    const lists = this.#lists
    lists.id.uuid(write.id)
    if (rows.dateLow === undefined) lists.dateLow.null()
    else lists.dateLow.timestamptz(rows.dateLow)
    if (rows.dateHigh === undefined) lists.dateHigh.null()
    else lists.dateHigh.timestamptz(rows.dateHigh)
    lists.nref.smallint(rows.nref)
    lists.keyFirst.int(lists.key.length + 1)
    for (const key of rows.keys) lists.key.bigint(key)
    lists.keyLast.int(lists.key.length)
    lists.head.text(write.head)
    lists.tail.text(write.tail)
    lists.metaAt.int(write.metaAt)
    lists.metaExtension.text(write.metaExtension)
  }

  #addSides({ strings, ranges, codes }: IndexRows): void {
    const lists = this.#lists
    const number = this.length
    for (const { p, v } of distinct(strings, compareStrings)) {
      lists.stringOf.int(number)
      lists.stringParameter.bigint(p)
      lists.stringValue.text(v)
    }
    for (const { p, lo, hi, u } of distinct(ranges, compareRanges)) {
      lists.rangeOf.int(number)
      lists.rangeParameter.bigint(p)
      lists.rangeLow.float8(lo)
      lists.rangeHigh.float8(hi)
      lists.rangeUnit.bigint(u)
    }
    for (const { p, k, system, code, display } of codes) {
      if (this.#codes.has(p ^ k)) continue
      this.#codes.add(p ^ k)
      lists.codeParameter.bigint(p)
      lists.codeKey.bigint(k)
      lists.codeSystem.text(system)
      lists.codeCode.text(code)
      if (display === undefined) lists.codeDisplay.null()
      else lists.codeDisplay.text(display)
    }
  }
}

function commonColumns(write: Write): Common | undefined {
  const { kind, ver, time, unique, parts, event } = write
  const isPlain = kind === 'insert' && ver === 1 && time === undefined && unique === undefined
  const isPlannable = parts.every(({ part }) => part.planned !== undefined)
  if (!isPlain || !isPlannable || event?.home !== undefined) return undefined
  const { project, type, author } = write
  return { project, type, author, cause: event?.cause ?? '' }
}

const LIST_NAMES = Object.keys(LISTS) as readonly ListName[]
const COMMON = 4

function list(name: ListName): string {
  return `$${COMMON + LIST_NAMES.indexOf(name) + 1}::${LISTS[name]}[]`
}

function unnestSql(...columns: readonly (readonly [name: string, list: ListName])[]): string {
  return `(select ${columns.map(([name, of]) => `unnest(${list(of)}) as ${name}`).join(', ')}) x`
}

const OWNER = `(${list('id')})`

// Rows are locked in one order, as in statements.ts; those of one resource are not shared.
const textWith = (parts: string) => `with t as materialized (
    select date_trunc('milliseconds', clock_timestamp()) as lu),
  r as (insert into ${INTO.resource}
    select $1::int, $2::smallint, id, 1, (select lu from t), d_lo, d_hi, nref,
      (${list('key')})[key_first:key_last]
    from ${unnestSql(
      ['id', 'id'],
      ['d_lo', 'dateLow'],
      ['d_hi', 'dateHigh'],
      ['nref', 'nref'],
      ['key_first', 'keyFirst'],
      ['key_last', 'keyLast'],
    )} order by id),
  v as (insert into ${INTO.version}
    select $1::int, $2::smallint, id, 1, (select lu from t), $3::uuid,
      ${contentSql('(select lu from t)')},
      meta_at, meta_ext
    from ${unnestSql(
      ['id', 'id'],
      ['head', 'head'],
      ['tail', 'tail'],
      ['meta_at', 'metaAt'],
      ['meta_ext', 'metaExtension'],
    )}),
  s as (insert into ${INTO.string}
    select $1::int, $2::smallint, p, v, ${OWNER}[n]
    from ${unnestSql(['n', 'stringOf'], ['p', 'stringParameter'], ['v', 'stringValue'])}
    order by p, v collate "C"),
  g as (insert into ${INTO.range}
    select $1::int, $2::smallint, p, lo, hi, u, ${OWNER}[n]
    from ${unnestSql(
      ['n', 'rangeOf'],
      ['p', 'rangeParameter'],
      ['lo', 'rangeLow'],
      ['hi', 'rangeHigh'],
      ['u', 'rangeUnit'],
    )} order by p, lo),
  c as (insert into ${INTO.code}
    select $1::int, p, k, system, code, display
    from ${unnestSql(
      ['p', 'codeParameter'],
      ['k', 'codeKey'],
      ['system', 'codeSystem'],
      ['code', 'codeCode'],
      ['display', 'codeDisplay'],
    )} order by p, k
    on conflict do nothing),
  tx as (insert into ${INTO.text}
    select $1::int, $2::smallint, ${OWNER}[n], ${lexemesSql('narrative', '$1::int', '$2::smallint')},
      ${lexemesSql('content', '$1::int', '$2::smallint')}
    from ${unnestSql(['n', 'wordsOf'], ['narrative', 'narrative'], ['content', 'content'])}),
  ${parts}
  w as (select $1::int as project, $2::smallint as type, unnest(${list('id')}) as id, 1 as ver,
    $4::text as cause),
  ${eventPart('c')}
  select exists (select 1 from o) as "hasEvents",
    ${holdAccounts('$1::int', list('patient'))} as "isHeld"`

const texts = new WeakMap<readonly WritePart[], string>()

/** Only one part can be planned: its rows are the list `partRow`. */
function statementText(parts: readonly WritePart[]): string {
  return getOrInsert(texts, parts, () => {
    const rows = unnestSql(['input', 'partRow'])
    const planned = parts.flatMap((part) => part.planned?.(rows) ?? [])
    if (planned.length > 1) throw new Error('Two parts of the writing statement can be planned')
    return textWith(planned.map((part) => `${part},`).join(''))
  })
}

/** Creates of one type in one Project by one Principal. */
export class PlannedCreates {
  readonly rows = new PlannedRows()
  readonly references: CheckedReference[] = []
  /** The search parameters of their index rows. */
  own: OwnParameters | undefined

  /** Empties the plans for reuse, after success or failure. */
  clear(): void {
    this.rows.clear()
    this.references.length = 0
    this.own = undefined
  }
}

/* Creates are planned before their ids are known to be free: the statement fails for a taken one. Inputs are not kept. */

/** False if only PostgreSQL can decide on it. Errors: like a create. */
export async function planCreate(
  store: StoreContext,
  principal: Principal,
  resource: Resource,
  plans: PlannedCreates,
): Promise<boolean> {
  const { resourceType: type } = resource
  const isPlain = !principal.isSuperAdmin && grantsFor(principal, type, 'create') === undefined
  if (!isPlain || store.rules.get(type)?.admit !== undefined) return false
  const authorized = await authorizeCreate(store, principal, resource, { keepId: true })
  const { own, inheritsFrom } = authorized
  if (inheritsFrom.some((patient) => store.holders.has(patient))) return false
  if (plans.rows.length === 0) plans.own = own
  if (plans.own !== own) return false
  const { write, references } = prepareDecided(
    authorized,
    inheritsFrom.length === 0 ? [] : undefined,
  ).prepared
  if (!plans.rows.add(write)) return false
  // A transaction checks references after all writes.
  plans.references.push(...references)
  return true
}

/** When false, the transaction must not commit. Errors: also PostgreSQL's for a taken id. */
export async function createPlanned(
  store: StoreContext,
  principal: Principal,
  { rows, references, own }: PlannedCreates,
): Promise<boolean> {
  const { number } = principal.project
  if (principal.lease !== undefined) await requireRunLease(store.connection, principal.lease)
  const now = await readOwnParameters(store.ownParameters, store.connection, principal, number)
  if (now !== own) return false
  store.deferred?.push(...references)
  const [answer] = await store.connection.query<PlannedAnswer>(rows.statement(store.parts))
  if (answer === undefined || answer.isHeld) return false
  for (const key of rows.codes) store.seenCodes.set(key, true)
  if (answer.hasEvents) store.announce()
  return true
}
