/** `_deleted=true`: deleted resources of a type, newest deletion first by default. */

import { isPlain } from '../access/decisions/decide.ts'
import { visibleRows } from '../access/decisions/grant-predicates.ts'
import { REGISTRY_TYPES } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { badRequest, forbidden } from '../core/errors.ts'
import { COMPARTMENTS, typeNumber } from '../fhir/definitions.ts'
import { type Bind, binder } from '../postgres/statement.ts'
import { normalId, requireAllowed, type StoreContext } from '../store/rows/context.ts'
import { contentId, toVersion, versionColumns } from '../store/rows/rows.ts'
import type { SearchPage, Version } from '../store/rows/version.ts'
import { type Condition, isCondition, type SearchRequest } from './language/search-request.ts'
import { unescapeValue } from './language/values.ts'
import { buildSearchPage } from './page.ts'
import { lastUpdatedSql } from './predicates/main-date.ts'
import { afterSql, orderSql, readCursor, resolveOrder, reversed } from './predicates/order.ts'
import { codesRead } from './predicates/predicate.ts'
import type { SortedRow } from './predicates/query.ts'

interface Row extends SortedRow {
  /** Start of the text of the previous version. */
  readonly before: string
}

/**
 * Errors: 403 unless the caller sees the whole type, since a tombstone has no content to apply policies to; 400 for
 * parameters other than `_id`, `_lastUpdated` and `_compartment`, and for other orders.
 */
export async function searchDeleted(
  store: StoreContext,
  principal: Principal,
  request: SearchRequest,
): Promise<SearchPage> {
  const { type, count, offset, cursor, total } = request
  requireAllowed(principal, type, 'search')
  if (!isPlain(principal, type, 'search') || REGISTRY_TYPES.has(type)) throw forbidden()
  const { parameters } = principal.project
  const codes = request.conditions.flatMap((criterion) => codesRead(type, criterion, parameters))
  visibleRows(store, principal, type, { interaction: 'search', units: [], codes })
  const order = resolveOrder(request, store.keys)
  if (order.terms.length > 0 || order.column === 'd_lo') {
    throw badRequest('Deletions are sorted by _lastUpdated or _id', '_sort')
  }
  const after = cursor === undefined ? undefined : readCursor(order, cursor)
  const pageOrder = after?.isBackwards ? reversed(order) : order
  const { bind, values } = binder()
  const tests = deletionTests(store, principal, request, bind)
  const place = after === undefined ? '' : ` and ${afterSql(pageOrder, after, bind)}`
  const text = `select ${versionColumns('r')}, null as d_lo, (
      select left(b.content, 256) from version b where b.project = ${bind(principal.project.number, 'int')} and b.type = r.type
        and b.id = r.id and b.ver = r.ver - 1) as before
    from version r where ${tests.join(' and ')}${place}
    order by ${orderSql(pageOrder, 'r')}
    limit ${bind(count + 1, 'int')} offset ${bind(offset, 'int')}`
  const rows = count === 0 ? [] : await store.connection.query<Row>({ text, values })
  const shown = rows.map((row) => ({ row, version: toShownVersion(row) }))
  const page = buildSearchPage(request, { order, after, rows: shown })
  return total === 'none' ? page : { ...page, total: await countDeleted(store, principal, request) }
}

async function countDeleted(
  store: StoreContext,
  principal: Principal,
  request: SearchRequest,
): Promise<number> {
  const { bind, values } = binder()
  const tests = deletionTests(store, principal, request, bind)
  const text = `select count(*)::int as count from version r where ${tests.join(' and ')}`
  const [row] = await store.connection.query<{ count: number }>({ text, values })
  return row?.count ?? 0
}

function deletionTests(
  store: StoreContext,
  { project }: Principal,
  { type, conditions }: SearchRequest,
  bind: Bind,
): string[] {
  const named = conditions.map((condition) => {
    if (!isCondition(condition) || condition.modifier !== undefined) throw unsupported()
    return conditionSql(store, type, condition, bind)
  })
  const own = bind(project.number, 'int')
  return [
    `r.project = ${own}`,
    `r.type = ${bind(typeNumber(type), 'smallint')}`,
    'r.content is null',
    `not exists (select 1 from version n where n.project = ${own} and n.type = r.type
      and n.id = r.id and n.ver = r.ver + 1)`,
    ...named,
  ]
}

function conditionSql(
  { keys }: StoreContext,
  type: string,
  condition: Condition,
  bind: Bind,
): string {
  const texts = condition.values.map(unescapeValue)
  switch (condition.code) {
    case '_id': {
      const ids = texts.map((id) => keys.rowId(type, normalId(id)))
      return `r.id = any(${bind(ids, 'uuid[]')})`
    }
    case '_lastUpdated':
      if (condition.type !== 'date') throw unsupported()
      return lastUpdatedSql(condition)(bind)
    case '_compartment': {
      const names = texts.flatMap((text) =>
        text.includes('/') ? [text] : COMPARTMENTS.map((kind) => `${kind}/${text}`),
      )
      return `exists (select 1
        from jsonb_array_elements(('{' || r.meta_ext || '}')::jsonb -> 'compartment') c
        where c ->> 'reference' = any(${bind(names, 'text[]')}))`
    }
    default:
      throw unsupported()
  }
}

function unsupported() {
  return badRequest('_deleted goes with _id, _lastUpdated and _compartment only', '_deleted')
}

function toShownVersion(row: Row): Version {
  const id = contentId(row.before)
  const version = toVersion(row, id)
  const { type, ver, lastUpdated } = version
  const meta = { versionId: String(ver), lastUpdated: lastUpdated.toISOString() }
  const content = JSON.stringify({ resourceType: type, id, meta })
  return { ...version, content, metaAt: content.length - 2 }
}
