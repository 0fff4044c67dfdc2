/** String parameters: ranges of `idx_string`, whose values are normalised and ordered bytewise. */

import { normaliseString } from '../../../fhir/values.ts'
import type { Condition } from '../../../query/search-request.ts'
import { unescapeValue } from '../../../query/values.ts'
import type { Bind } from '../../rows/side-rows.ts'
import { filter, isMissing, parameterSql, type Scene, sqlOf } from './row-test.ts'
import type { Matches, Test } from './test.ts'

/** No text sorts behind a prefix followed by this, bytewise. */
const LAST = '\u{10ffff}'

/** Some part starts with the value, or each word of the value starts some word of an element. */
export function stringTest(scene: Scene, ps: readonly bigint[], condition: Condition): Test {
  const { modifier, values } = condition
  if (modifier === 'missing') {
    return filter((bind) => {
      const exists = `exists (select 1 from idx_string s where s.id = r.id
        and s.project = r.project and ${parameterSql('s', ps, bind)})`
      return isMissing(values) ? `not ${exists}` : exists
    })
  }
  const texts = values.map(unescapeValue).filter((text) => normaliseString(text) !== '')
  if (modifier === 'exact') {
    return { kind: 'keys', any: texts.flatMap((text) => ps.map((p) => scene.keys.uri(p, text))) }
  }
  const alternative = ALTERNATIVES.get(modifier) ?? words
  if (texts.length === 0) return filter(() => (modifier === 'not' ? 'true' : 'false'))
  const isSteady =
    modifier === undefined && texts.every((text) => !normaliseString(text).includes(' '))
  const test: Test = {
    kind: 'ids',
    ids: (bind) => texts.map((text) => alternative(scene, ps, text, bind)).join(' union '),
    ...(modifier === undefined ? { expected: expectedOf(texts) } : {}),
    isSteady,
  }
  return modifier === 'not' ? filter((bind) => `not (${sqlOf(test, bind)})`) : test
}

/** Each value by the rarest of its words. */
function expectedOf(
  texts: readonly string[],
): (statistics: Pick<Matches, 'startingWith'>) => number {
  const values = texts.map((text) => normaliseString(text).split(' '))
  return (statistics) =>
    values
      .map((words) => Math.min(...words.map((word) => statistics.startingWith(word))))
      .reduce((sum, rows) => sum + rows, 0)
}

function words({ keys, project }: Scene, ps: readonly bigint[], text: string, bind: Bind): string {
  const value = normaliseString(text)
  const whole = startsWith(project, ps, value, bind)
  if (!value.includes(' ')) return whole
  const anywhere = [...ps, ...ps.map((p) => keys.words(p))]
  const each = [...new Set(value.split(' '))]
  const rows = each.length > MAX_JOINED ? intersected : joined
  return `${whole} union (${rows(project, anywhere, each, bind)})`
}

/** From here on the orders to join them in are too many to weigh. */
const MAX_JOINED = 5

/** PostgreSQL knows which words are common: it begins with the rarest and looks up the others. */
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

/** `value` is normalised. */
export function prefixSql(alias: string, value: string, bind: Bind): string {
  return `${alias}.v >= ${bind(value, 'text')} and ${alias}.v < ${bind(value + LAST, 'text')}`
}

/** Anywhere in a row of `p`; `text` is as the caller wrote it. */
export function containsTest(scene: Scene, ps: readonly bigint[], texts: readonly string[]): Test {
  return {
    kind: 'ids',
    ids: (bind) => texts.map((text) => inside(scene, ps, text, bind)).join(' union '),
  }
}

function inside(scene: Scene, ps: readonly bigint[], text: string, bind: Bind): string {
  return like(scene, ps, `%${escapeLike(text)}%`, bind)
}

function atEnd(scene: Scene, ps: readonly bigint[], text: string, bind: Bind): string {
  return like(scene, ps, `%${escapeLike(text)}`, bind)
}

function escapeLike(text: string): string {
  return normaliseString(text).replace(/[\\%_]/g, '\\$&')
}

function like({ project }: Scene, ps: readonly bigint[], pattern: string, bind: Bind): string {
  return `${select(project, ps, bind)} and s.v like ${bind(pattern, 'text')}`
}

const ALTERNATIVES = new Map<string | undefined, typeof words>([
  ['contains', inside],
  ['text', inside],
  ['ew', atEnd],
])

function select(project: number, ps: readonly bigint[], bind: Bind): string {
  return `select s.id from idx_string s where s.project = ${bind(project, 'int')}
    and ${parameterSql('s', ps, bind)}`
}
