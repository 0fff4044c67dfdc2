/**
 * Compiles `_sort` rules that no B-tree of `resource` serves to the sort value of a row: the least of many ascending,
 * the greatest descending, null without one. https://hl7.org/fhir/R4/search.html#sort
 */
import { badRequest, notSupported } from '../../core/errors.ts'
import { mainDate, searchParameter, storedParameters, typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Bind } from '../../postgres/statement.ts'
import { plannedParameter } from '../../store/index/index-plan.ts'
import type { Keys } from '../../store/index/keys.ts'
import { WELL_FORMED_CONTENT } from '../../store/rows/rows.ts'
import { type Criterion, isCondition, type SortRule } from '../language/search-request.ts'
import { type NearValue, parseNearValue } from '../language/values.ts'
import { parameterSql } from './predicate.ts'
import { distanceSql } from './ranges.ts'
import { scoreToSortBy } from './texts.ts'

export interface Term {
  readonly name: string
  readonly descending: boolean
  readonly type: 'text' | 'float8' | 'timestamptz' | 'uuid'
  readonly one: (project: number, bind: Bind) => string
  /** Side table or index of `resource` with the values in order; absent: no such index. */
  readonly side?: Side | undefined
}

export interface Side {
  /** Selects `id` and `v` of all rows; a resource with several values has several rows. */
  readonly rows: (project: number, bind: Bind) => string
  /** True for a `resource r` without rows. */
  readonly isMissing: (project: number, bind: Bind) => string
  /** Key of resources without a value; undefined if there is no such key. */
  readonly absent: (project: number) => bigint | undefined
  /** True when an index finds the rows without a value by `isMissing`. */
  readonly isIndexed?: true
}

interface TermScope {
  readonly own: OwnParameters | undefined
  readonly conditions: readonly Criterion[]
}

/** Errors: 400 for a parameter that cannot be sorted by. */
export function compileSortTerm(
  keys: Keys,
  type: string,
  { code, descending }: SortRule,
  { own, conditions }: TermScope,
): Term {
  const name = `${descending ? '-' : ''}${code}`
  const column = sortColumn(type, code)
  if (column !== undefined) {
    const side = columnSide(type, column.sql)
    return { name, descending, type: column.type, one: () => column.sql, side }
  }
  if (code === '_score') {
    const one = scoreToSortBy(conditions)
    return { name, descending, type: 'float8', one }
  }
  const pick = descending ? 'max' : 'min'
  const parameter = searchParameter(type, code, own)
  const ps = (project: number) =>
    storedParameters(type, code).map((stored) => keys.param(project, type, stored))
  const isUsual = plannedParameter(type, code, own)?.isUsual === true
  const absent = (project: number) => {
    const [p, another] = ps(project)
    // With several stored parameters, a row must lack all of them.
    return isUsual && p !== undefined && another === undefined ? keys.absent(p) : undefined
  }
  switch (parameter?.type) {
    case 'special':
      return {
        name,
        descending,
        type: 'float8',
        ...distance(requireNearValues(conditions), pick, ps),
      }
    case 'string': {
      const values = sideTable('idx_string', 's.v', pick, ps)
      return { name, descending, type: 'text', ...values, side: { ...values.side, absent } }
    }
    case 'date':
    case 'number':
    case 'quantity': {
      const values = sideTable('idx_range', 's.lo', pick, ps)
      return { name, descending, type: 'float8', ...values, side: { ...values.side, absent } }
    }
    default: {
      const one = isCoded(type, code, own) ? codeSql(pick, ps) : contentSql(pick, type, code, own)
      return { name, descending, type: 'text', one }
    }
  }
}

function sortColumn(type: string, code: string): { type: Term['type']; sql: string } | undefined {
  if (code === '_id') return { type: 'uuid', sql: 'r.id' }
  if (code === '_lastUpdated') return { type: 'timestamptz', sql: 'r.lu' }
  return code === mainDate(type) ? { type: 'timestamptz', sql: 'r.d_lo' } : undefined
}

/** Returns the index of a column; undefined for the id, after which no term makes a difference. */
function columnSide(type: string, column: string): Side | undefined {
  if (column === 'r.id') return undefined
  const isDate = column === 'r.d_lo'
  return {
    rows: (project, bind) => `select r.id, ${column} as v from resource r
      where r.project = ${bind(project, 'int')} and r.type = ${bind(typeNumber(type), 'smallint')}
        ${isDate ? 'and r.d_lo is not null' : ''}`,
    isMissing: () => (isDate ? 'r.d_lo is null' : 'false'),
    absent: () => undefined,
    isIndexed: true,
  }
}

/** Returns the places in the search. Errors: 400 without any. */
function requireNearValues(conditions: readonly Criterion[]): readonly NearValue[] {
  const near = conditions.find((one) => isCondition(one) && one.type === 'special')
  if (near === undefined || !isCondition(near)) {
    throw badRequest('Sorting by near needs a place to be near to', '_sort')
  }
  return near.values.map(parseNearValue)
}

function distance(
  places: readonly NearValue[],
  pick: string,
  ps: (project: number) => readonly bigint[],
): Pick<Term, 'one'> {
  const one = (project: number, bind: Bind) => {
    const each = places.map((place) => distanceSql(place, bind)).join(', ')
    return `(select ${pick}(least(${each})) from idx_range g
      where g.project = ${bind(project, 'int')} and ${parameterSql('g', ps(project), bind)}
        and g.id = r.id)`
  }
  return { one }
}

function sideTable(
  table: 'idx_string' | 'idx_range',
  value: 's.v' | 's.lo',
  pick: 'min' | 'max',
  ps: (project: number) => readonly bigint[],
) {
  const rows = (project: number, bind: Bind) =>
    `from ${table} s where s.project = ${bind(project, 'int')}
      and ${parameterSql('s', ps(project), bind)}`
  const each = (project: number, bind: Bind) =>
    ps(project).map(
      (p) => `select s.id, ${value} as v from ${table} s
        where s.project = ${bind(project, 'int')} and ${parameterSql('s', [p], bind)}`,
    )
  const side: Pick<Side, 'rows' | 'isMissing'> = {
    // Merging the indexes of both parameters keeps their order.
    rows: (project, bind) => each(project, bind).join(' union all '),
    isMissing: (project, bind) =>
      `not exists (select 1 ${rows(project, bind)} and s.id = r.id offset 0)`,
  }
  const one: Term['one'] = (project, bind) =>
    `(select ${pick}(${value}) ${rows(project, bind)} and s.id = r.id)`
  return { one, side }
}

const CODED = new Set(['Coding', 'CodeableConcept', 'code', 'boolean'])

function isCoded(type: string, code: string, own: OwnParameters | undefined): boolean {
  return storedParameters(type, code).some((stored) =>
    plannedParameter(type, stored, own)?.types.some((element) => CODED.has(element)),
  )
}

/** Sorts by the dictionary: the least code among the row's keys. */
function codeSql(pick: string, ps: (project: number) => readonly bigint[]): Term['one'] {
  return (project, bind) => `(select ${pick}(c.code collate "C") from code c
    where c.project = ${bind(project, 'int')} and ${parameterSql('c', ps(project), bind)}
      and c.k = any(r.keys))`
}

/** Identifiers, references and urls are indexed as keys only, so their text is read from the content. */
function contentSql(
  pick: string,
  type: string,
  code: string,
  own: OwnParameters | undefined,
): Term['one'] {
  const paths = jsonPaths(type, code, own)
  if (paths === undefined)
    throw notSupported(`Sorting ${type} by ${code} is not supported`, '_sort')
  return (project, bind) => `(select ${pick}((x #>> '{}') collate "C")
    from version v cross join unnest(${bind(paths, 'text[]')}) path
      cross join jsonb_path_query(${WELL_FORMED_CONTENT}::jsonb, path::jsonpath) x
    where v.project = ${bind(project, 'int')} and v.type = r.type and v.id = r.id and v.ver = r.ver)`
}

/** Member of an element to compare; empty for a primitive. */
const COMPARED: ReadonlyMap<string, string> = new Map([
  ['Identifier', '.value'],
  ['ContactPoint', '.value'],
  ['Reference', '.reference'],
])

/** A path, then at most one type or condition. */
const PATH =
  /^\(?(\w+)\.([\w.]+?)(?: as (\w+)|\.as\((\w+)\)|\.where\(resolve\(\) is (\w+)\)|\.where\((\w+) ?= ?'([\w-]+)'\))?\)?$/

/** Returns undefined for more complex expressions. */
function jsonPaths(
  type: string,
  code: string,
  own: OwnParameters | undefined,
): readonly string[] | undefined {
  const expression = searchParameter(type, code, own)?.expression
  const [kind, second] = plannedParameter(type, code, own)?.types ?? []
  if (expression === undefined || kind === undefined || second !== undefined) return undefined
  const paths = expression.split(' | ').map((part) => jsonPath(part, COMPARED.get(kind) ?? ''))
  return paths.every((path) => path !== undefined) ? paths : undefined
}

function jsonPath(part: string, compared: string): string | undefined {
  const match = PATH.exec(part.trim())
  if (match === null) return undefined
  const [, , path = '', as, ofType, resolved, member, value] = match
  const chosen = as ?? ofType
  const property = chosen === undefined ? '' : chosen.charAt(0).toUpperCase() + chosen.slice(1)
  const whole = `$.${path}${property}`
  if (resolved !== undefined) return `${whole}${compared} ? (@ starts with "${resolved}/")`
  if (member !== undefined) return `${whole} ? (@.${member} == "${value}")${compared}`
  return `${whole}${compared}`
}
