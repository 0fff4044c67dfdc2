/** String parameters: ranges of `idx_string`, whose values are normalised and ordered bytewise. */

import { tooCostly } from '../../core/errors.ts'
import { comparedText, comparedWords, splitWindows } from '../../fhir/searched-text.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import type { Bind } from '../../postgres/statement.ts'
import type { ConditionOf } from '../language/search-request.ts'
import { unescapeValue } from '../language/values.ts'
import {
  filter,
  type Matches,
  missingPredicate,
  type Predicate,
  parameterSql,
  predicateSql,
  type SearchScope,
} from './predicate.ts'

/** Sorts after every text with the same prefix, bytewise. */
const LAST = '\u{10ffff}'

export function stringPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  condition: ConditionOf<'string'>,
): Predicate {
  const { code, modifier, values } = condition
  if (modifier === 'missing') return missingPredicate('idx_string', scope, ps, condition)
  const texts = values.map(unescapeValue).filter((text) => comparedText(text) !== '')
  if (modifier !== 'exact' && texts.length === 0) {
    return filter(() => (modifier === 'not' ? 'true' : 'false'))
  }
  switch (modifier) {
    case 'exact':
      return { kind: 'keys', any: texts.flatMap((text) => ps.map((p) => scope.keys.uri(p, text))) }
    case 'contains':
    case 'text':
      return containsPredicate(scope, ps, texts)
    case 'ew':
      return {
        kind: 'ids',
        ids: (bind) => texts.map((text) => atEnd(scope, ps, text, bind)).join(' union '),
      }
    case 'not': {
      const wanted = wordStartsPredicate(scope, ps, texts, code)
      return filter((bind) => `not (${predicateSql(wanted, bind)})`)
    }
    case undefined:
      return wordStartsPredicate(scope, ps, texts, code)
    default:
      return modifier satisfies never
  }
}

/** Each word of the value starts a word of the resource's values. */
function wordStartsPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  texts: readonly string[],
  code: string,
): Predicate {
  const wanted = texts.map((text) => searchWords(text, code))
  const hasStablePlan = wanted.every((words) => words.length === 1)
  return {
    kind: 'ids',
    ids: (bind) => wanted.map((words) => wordsSql(scope, ps, words, bind)).join(' union '),
    expected: wordRowsEstimator(wanted),
    ...(hasStablePlan ? { few: (bind: Bind) => ofRow(scope, ps, wanted, bind) } : {}),
    hasStablePlan,
  }
}

const MOST_WORDS = 200

/** Errors: 400 too-costly for too many words. */
export function searchWords(text: string, code: string): readonly string[] {
  const words = comparedWords(text)
  if (words.length <= MOST_WORDS) return words
  throw tooCostly(`A text that is searched may have ${MOST_WORDS} words`, code)
}

function wordRowsEstimator(
  values: readonly (readonly string[])[],
): (statistics: Pick<Matches, 'startingWith'>) => number {
  return (statistics) =>
    values
      .map((words) => Math.min(...words.map((word) => statistics.startingWith(word))))
      .reduce((sum, rows) => sum + rows, 0)
}

/** Finds the row by id alone; other conditions are written so that no index serves them. */
function ofRow(
  { keys, project }: SearchScope,
  ps: readonly bigint[],
  wanted: readonly (readonly string[])[],
  bind: Bind,
): string {
  const starts = wanted.flat().map((word) => `(${prefixSql('s', word, bind)})`)
  const each = [...ps, ...ps.map((p) => keys.words(p))]
  const own = bind(project, 'int')
  const tests = `${parameterSql('s', each, bind)} and (${starts.join(' or ')})`
  return `select s.id from idx_string s where ${dialect.projectEquals('s', own, tests)}`
}

function wordsSql(
  { keys, project }: SearchScope,
  ps: readonly bigint[],
  words: readonly string[],
  bind: Bind,
): string {
  const later = ps.map((p) => keys.words(p))
  const [first = '', ...others] = words
  if (others.length === 0) {
    // For two parameters at once PostgreSQL overestimates the rows and picks another plan.
    return [ps, later].map((some) => startsWith(project, some, first, bind)).join(' union all ')
  }
  const rows = words.length > MAX_JOINED ? intersected : joined
  return `(${rows(project, [...ps, ...later], words, bind)})`
}

/** From here on there are too many join orders to plan. */
const MAX_JOINED = 5

/** Joins the words: PostgreSQL starts with the rarest and looks up the others. */
function joined(
  project: number,
  ps: readonly bigint[],
  words: readonly string[],
  bind: Bind,
): string {
  const tables = words.map((word, i) => {
    const alias = `s${i}`
    const same = i === 0 ? [] : [`${alias}.id = s0.id`]
    const tests = [
      ...same,
      `${alias}.project = ${bind(project, 'int')}`,
      parameterSql(alias, ps, bind),
      prefixSql(alias, word, bind),
    ]
    return { from: `idx_string ${alias}`, test: tests.join(' and ') }
  })
  return `select s0.id from ${tables.map(({ from }) => from).join(', ')}
    where ${tables.map(({ test }) => test).join(' and ')}`
}

function intersected(
  project: number,
  ps: readonly bigint[],
  words: readonly string[],
  bind: Bind,
): string {
  return words.map((word) => startsWith(project, ps, word, bind)).join(' intersect ')
}

function startsWith(project: number, ps: readonly bigint[], value: string, bind: Bind): string {
  return `${select(project, ps, bind)} and ${prefixSql('s', value, bind)}`
}

/** `value` is compared text. */
export function prefixSql(alias: string, value: string, bind: Bind): string {
  return `${alias}.v >= ${bind(value, 'text')} and ${alias}.v < ${bind(value + LAST, 'text')}`
}

/** Matches anywhere in a value; `text` is unnormalised. */
export function containsPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  texts: readonly string[],
): Predicate {
  return {
    kind: 'ids',
    ids: (bind) => texts.map((text) => inside(scope, ps, text, bind)).join(' union '),
  }
}

function inside(scope: SearchScope, ps: readonly bigint[], text: string, bind: Bind): string {
  const windows = splitWindows(comparedText(text))
  return intersection(windows.map((window) => like(scope, ps, `%${escapeLike(window)}%`, bind)))
}

function atEnd(scope: SearchScope, ps: readonly bigint[], text: string, bind: Bind): string {
  const windows = splitWindows(comparedText(text))
  const last = escapeLike(windows.at(-1) ?? '')
  const before = windows.slice(0, -1).map((window) => `%${escapeLike(window)}%`)
  return intersection([...before, `%${last}`].map((pattern) => like(scope, ps, pattern, bind)))
}

function intersection(selects: readonly string[]): string {
  return selects.length === 1 ? selects.join() : `(${selects.join(' intersect ')})`
}

function escapeLike(text: string): string {
  return text.replace(/[\\%_]/g, '\\$&')
}

function like(
  { keys, project }: SearchScope,
  ps: readonly bigint[],
  pattern: string,
  bind: Bind,
): string {
  const all = [...ps, ...ps.map((p) => keys.chunks(p))]
  return `${select(project, all, bind)} and s.v like ${bind(pattern, 'text')}`
}

function select(project: number, ps: readonly bigint[], bind: Bind): string {
  return `select s.id from idx_string s where s.project = ${bind(project, 'int')}
    and ${parameterSql('s', ps, bind)}`
}
