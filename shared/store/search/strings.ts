/** String parameters: ranges of `idx_string`, whose values are normalised and ordered bytewise. */
import type { Condition } from '../../fhir/search.ts'
import { unescapeValue } from '../../fhir/search-values.ts'
import { normaliseString } from '../../fhir/values-string.ts'
import { keysLiteral } from '../keys.ts'
import type { Bind } from '../side-rows.ts'
import { filter, isMissing, type Scene, type Test } from './row-test.ts'

/** No text sorts behind a prefix followed by this, bytewise. */
const LAST = '\u{10ffff}'

/** Some part starts with the value, or each word of the value starts some word of an element. */
export function stringTest(scene: Scene, ps: readonly bigint[], condition: Condition): Test {
  const { modifier, values } = condition
  if (modifier === 'missing') {
    return filter((bind) => {
      const exists = `exists (select 1 from idx_string s where s.id = r.id
        and s.project = r.project and s.p = any(${bind(keysLiteral(ps), 'bigint[]')}))`
      return isMissing(values) ? `not ${exists}` : exists
    })
  }
  const texts = values.map(unescapeValue)
  const alternative =
    modifier === 'exact' ? exactly : modifier === 'contains' || modifier === 'text' ? inside : words
  const sql = (bind: Bind) =>
    `(${texts.map((text) => alternative(scene, ps, text, bind)).join(' or ')})`
  return modifier === 'not' ? filter((bind) => `not ${sql(bind)}`) : { kind: 'narrow', sql }
}

function words({ keys, project }: Scene, ps: readonly bigint[], text: string, bind: Bind): string {
  const value = normaliseString(text)
  if (value === '') return 'false'
  const whole = startsWith(project, ps, value, bind)
  if (!value.includes(' ')) return whole
  const anywhere = [...ps, ...ps.map((p) => keys.words(p))]
  const each = value.split(' ').map((word) => startsWith(project, anywhere, word, bind))
  return `(${whole} or (${each.join(' and ')}))`
}

function startsWith(project: number, ps: readonly bigint[], value: string, bind: Bind): string {
  return `r.id in (select s.id from idx_string s where s.project = ${bind(project, 'int')}
    and s.p = any(${bind(keysLiteral(ps), 'bigint[]')})
    and s.v >= ${bind(value, 'text')} and s.v < ${bind(value + LAST, 'text')})`
}

function inside({ project }: Scene, ps: readonly bigint[], text: string, bind: Bind): string {
  const value = normaliseString(text)
  if (value === '') return 'false'
  const pattern = `%${value.replace(/[\\%_]/g, '\\$&')}%`
  return `r.id in (select s.id from idx_string s where s.project = ${bind(project, 'int')}
    and s.p = any(${bind(keysLiteral(ps), 'bigint[]')}) and s.v like ${bind(pattern, 'text')})`
}

// The index has lost case and accents, so the content must hold the very text as a JSON string.
function exactly({ project }: Scene, ps: readonly bigint[], text: string, bind: Bind): string {
  const value = normaliseString(text)
  if (value === '') return 'false'
  return `(r.id in (select s.id from idx_string s where s.project = ${bind(project, 'int')}
      and s.p = any(${bind(keysLiteral(ps), 'bigint[]')}) and s.v = ${bind(value, 'text')})
    and exists (select 1 from version c where c.project = r.project and c.type = r.type
      and c.id = r.id and c.ver = r.ver
      and position(${bind(JSON.stringify(text), 'text')} in c.content) > 0))`
}
