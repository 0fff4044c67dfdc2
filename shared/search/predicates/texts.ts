/** Full-text search: `_text` and `_content`. https://hl7.org/fhir/R4/search.html#content */
import { badRequest, notSupported } from '../../core/errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { wordsQuery } from '../../fhir/searched-text.ts'
import type { Bind } from '../../postgres/statement.ts'
import { hasFullText, markSql } from '../../store/rows/side-rows.ts'
import {
  type Condition,
  type Criterion,
  isCondition,
  isOfWords,
} from '../language/search-request.ts'
import { unescapeValue } from '../language/values.ts'
import type { IdsPredicate, SearchScope } from './predicate.ts'

const COLUMNS: ReadonlyMap<string, string> = new Map([
  ['_text', 'narrative'],
  ['_content', 'content'],
])

/** Errors: 400 for a type without a full-text index. Values use `websearch` syntax and are OR-ed. */
export function wordsPredicate({ project, type }: SearchScope, condition: Condition): IdsPredicate {
  const { code } = condition
  if (!hasFullText(type)) throw notSupported(`${code} is not supported for ${type}`, code)
  const rows = (bind: Bind, test: (matches: string) => string) => {
    const [place, kind] = [bind(project, 'int'), bind(typeNumber(type), 'smallint')]
    const words = wordsSql(condition, bind)
    // A query without words matches nothing; combined with the mark it would match everything.
    const query = `case when numnode(${words}) > 0
      then (${words}) && quote_literal(${markSql(place, kind)})::tsquery end`
    return `select x.id from resource_text x where x.project = ${place} and x.type = ${kind}
      and ${test(`x.${COLUMNS.get(code)} @@ ${query}`)}`
  }
  return {
    kind: 'ids',
    ids: (bind) => rows(bind, (matches) => matches),
    few: (bind) => rows(bind, (matches) => `(${matches}) is true`),
  }
}

/** Scores `resource r` from 0 to 1; undefined without full-text conditions. `project` is SQL. */
export function scoreSql(
  conditions: readonly Criterion[],
): ((project: string, bind: Bind) => string) | undefined {
  const asked = conditions.filter((one) => isCondition(one)).filter(({ code }) => isOfWords(code))
  if (asked.length === 0) return undefined
  return (project, bind) => {
    const ranks = asked.map((condition) => {
      const column = COLUMNS.get(condition.code)
      return `ts_rank(x.${column}, ${wordsSql(condition, bind)})`
    })
    return `(select ((${ranks.join(' + ')}) / ${asked.length})::float8 from resource_text x
      where x.project = ${project} and x.type = r.type and x.id = r.id)`
  }
}

/** Errors: 400 for a search without full-text conditions. */
export function scoreToSortBy(
  conditions: readonly Criterion[],
): (project: number, bind: Bind) => string {
  const score = scoreSql(conditions)
  if (score === undefined) throw badRequest('Sorting by _score needs _text or _content', '_sort')
  return (project, bind) => score(bind(project, 'int'), bind)
}

function wordsSql({ values }: Condition, bind: Bind): string {
  const each = values.map((value) => {
    return `websearch_to_tsquery('simple', ${bind(wordsQuery(unescapeValue(value)), 'text')})`
  })
  return each.length === 1 ? each.join() : `(${each.join(' || ')})`
}
