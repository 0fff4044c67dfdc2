/** Composite parameters: all values of one element, from the rows of composite-plan.ts. */

import type { SearchParameter } from '../../fhir/definitions-data.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import { arrayLiteral, type Bind } from '../../postgres/statement.ts'
import type { Condition } from '../language/search-request.ts'
import {
  parseDateValue,
  parseNumberValue,
  parseQuantityValue,
  parseReferenceValue,
  parseTokenValue,
  splitComposite,
  unescapeValue,
} from '../language/values.ts'
import { isImpliedPart } from './dictionary.ts'
import { type Predicate, parameterSql, type SearchScope } from './predicate.ts'
import { dateSql, numberBounds, orSql, quantityBounds } from './ranges.ts'
import { prefixSql, searchWords } from './strings.ts'

type Component = NonNullable<SearchParameter['components']>[number]

interface Part {
  readonly kind: Component['type']
  /** Position in the parameter, as in Keys.composite. */
  readonly position: number
  readonly value: string
}

export function compositePredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  parameter: SearchParameter,
  { code, values }: Condition,
): Predicate {
  const alternatives = values.map((value) => {
    const texts = splitComposite(parameter, value)
    const parts = (parameter.components ?? []).map(({ type }, position) => ({
      kind: type,
      position,
      value: texts[position] ?? '',
    }))
    const ranged = parts.filter(({ kind }) => !isKey(kind)).flatMap((part) => byWords(part, code))
    const keyed = parts.filter(isKeyed)
    const keys = ps.flatMap((p) => joinedKeys(scope, code, p, keyed))
    return { keys, ranged, isInDictionary: keyed.length === 1 && hasNoSystem(keyed) }
  })
  if (alternatives.every(({ ranged }) => ranged.length === 0)) {
    return { kind: 'keys', any: alternatives.flatMap(({ keys }) => keys) }
  }
  const unionRowsSql = (bind: Bind, isRow: boolean) =>
    alternatives.map((alternative) => rowsSql(scope, alternative, bind, isRow)).join(' union all ')
  return {
    kind: 'ids',
    ids: (bind) => unionRowsSql(bind, false),
    few: (bind) => unionRowsSql(bind, true),
    // With several ranges, the rarest is read first.
    hasStablePlan: alternatives.every(({ ranged }) => ranged.length === 1),
  }
}

interface Alternative {
  readonly keys: readonly bigint[]
  readonly ranged: readonly Part[]
  /** A code of any system: most rows are indexed under a system, which the dictionary knows. */
  readonly isInDictionary: boolean
}

/** Each word of a string has its own rows. */
function byWords(part: Part, code: string): readonly Part[] {
  if (part.kind !== 'string') return [part]
  return searchWords(unescapeValue(part.value), code).map((value) => ({ ...part, value }))
}

function hasNoSystem([first]: readonly Part[]): boolean {
  return first?.kind === 'token' && parseTokenValue(first.value).system === undefined
}

const isKey = (kind: Component['type']) =>
  kind === 'token' || kind === 'reference' || kind === 'uri'
const isKeyed = ({ kind }: Part) => isKey(kind)

function joinedKeys(
  scope: SearchScope,
  name: string,
  p: bigint,
  [first, ...others]: readonly Part[],
): bigint[] {
  if (first === undefined) return []
  let joined = componentKeys(scope, name, p, first)
  for (const other of others) {
    const seconds = componentKeys(scope, name, p, other)
    joined = joined.flatMap((key) =>
      seconds.map((second) => scope.keys.composite(key, other.position, second)),
    )
  }
  return joined
}

function componentKeys(
  scope: SearchScope,
  name: string,
  p: bigint,
  { kind, value }: Part,
): bigint[] {
  const { keys, project } = scope
  if (kind === 'uri') return [keys.uri(p, unescapeValue(value))]
  if (kind === 'token') {
    const token = parseTokenValue(value)
    if (token.code === undefined) return []
    const any = isImpliedPart(scope, name, token) ? [keys.token(p, undefined, token.code)] : []
    return [keys.token(p, token.system, token.code), ...any]
  }
  return parseReferenceValue(undefined, undefined, value).map((reference) =>
    keys.reference(p, keys.target(project, reference)),
  )
}

/** Rows of several ranges belong to one element if they share a mark in `u`. */
function rowsSql(
  scope: SearchScope,
  { keys, ranged: parts, isInDictionary }: Alternative,
  bind: Bind,
  isRow: boolean,
): string {
  const project = bind(scope.project, 'int')
  const isMarked = parts.length > 1 && parts[0]?.kind !== 'string'
  const joins = parts.map((part, i) => {
    const alias = `g${i}`
    const ps = keys.map((key) => scope.keys.composite(key, part.position))
    const table = part.kind === 'string' ? 'idx_string' : 'idx_range'
    const isOfElement = isMarked ? ` and g0.u = ${alias}.u` : ''
    const same = i > 0 ? ` on g0.id = ${alias}.id${isOfElement}` : ''
    const isOfParameter = isInDictionary
      ? `${alias}.p = any(${bind(arrayLiteral(ps), 'bigint[]')} || array(select c.k from code c
        where c.project = ${project} and ${parameterSql('c', ps, bind)}))`
      : parameterSql(alias, ps, bind)
    // For a known row, only the id should use an index.
    const test = isRow
      ? dialect.projectEquals(alias, project, isOfParameter)
      : `${alias}.project = ${project} and ${isOfParameter}`
    return {
      from: `${table} ${alias}${same}`,
      test,
      values: partSql(scope, part, { alias, bind, isMarked, isRow: isRow || isMarked }),
    }
  })
  const from = joins.map(({ from }) => from).join(' join ')
  const tests = joins.map(({ test }) => test).join(' and ')
  const rows = `select g0.id from ${from} where ${tests}`
  const [first, ...others] = joins.map(({ values }) => values)
  // A single range reads its part of the index; several are looked up from the first.
  if (others.length === 0)
    return (first ?? []).map((sql) => `${rows} and ${sql}`).join(' union all ')
  const each = [first ?? [], ...others].map((values) => orSql(values.map((sql) => `(${sql})`)))
  return `${rows} and ${each.join(' and ')}`
}

interface PartPlace {
  readonly alias: string
  readonly bind: Bind
  readonly isMarked: boolean
  readonly isRow: boolean
}

function partSql(
  scope: SearchScope,
  { kind, value }: Part,
  { alias, bind, isMarked, isRow }: PartPlace,
): readonly string[] {
  if (kind === 'string') return [prefixSql(alias, value, bind)]
  if (kind === 'date') {
    const at = (ms: number) => bind(ms, 'float8')
    return [dateSql(parseDateValue(value), `${alias}.lo`, `${alias}.hi`, at)]
  }
  if (kind === 'number' || isMarked) {
    return numberBounds(parseNumberValue(value), alias, bind, isRow)
  }
  return quantityBounds(scope, parseQuantityValue(value), { alias, bind, isRow })
}
