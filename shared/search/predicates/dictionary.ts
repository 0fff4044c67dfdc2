/** Searches through the dictionary of distinct values (table `code`): first its keys, then the rows that hold one. */

import { typeElements, valueSet } from '../../fhir/definitions.ts'
import { canonicalUrl } from '../../fhir/resource.ts'
import { plainWords } from '../../fhir/values.ts'
import { arrayLiteral, type Bind } from '../../postgres/statement.ts'
import { plannedParameter } from '../../store/index/index-plan.ts'
import { pathsRead } from '../language/parameter-paths.ts'
import { parseTokenValue, type TokenValue, unescapeValue } from '../language/values.ts'
import {
  absentPredicate,
  isHeldSql,
  type JoinPredicate,
  type KeysPredicate,
  type Predicate,
  parameterSql,
  type SearchScope,
} from './predicate.ts'

/** `:text`: each word of the value starts a word of the same display, concept or identifier type. */
export function codeTextPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  values: readonly string[],
): Predicate {
  const texts = values.map((value) => plainWords(unescapeValue(value)).split(' '))
  return held(
    scope,
    ps.map((p) => scope.keys.texts(p)),
    (bind) =>
      texts.map((words) => {
        // A value without letters and digits matches nothing.
        if (words.includes('')) return 'false'
        const each = words.map((word) => `' ' || c.code like ${like(`% ${escaped(word)}%`, bind)}`)
        return each.join(' and ')
      }),
  )
}

/** `system|` on coded elements, which have no key for a system alone. */
export function systemPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  values: readonly string[],
  keys: readonly bigint[],
): Predicate {
  const systems = values.map((value) => parseTokenValue(value).system ?? '')
  return held(scope, ps, (bind) => [`c.system = any(${bind(systems, 'text[]')})`], keys)
}

/** `:below` of a uri: the value itself, its subpaths, and the versions of a canonical. */
export function belowPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  values: readonly string[],
): Predicate {
  return held(scope, ps, (bind) =>
    values.map((value) => {
      const [uri = '', version] = unescapeValue(value).replace(/\/$/, '').split('|')
      const whole = version === undefined ? uri : `${uri}|${version}`
      const borders = version === undefined ? ['/', '|'] : ['.']
      const under = borders.map((border) => `starts_with(c.code, ${bind(whole + border, 'text')})`)
      return `c.code = ${bind(whole, 'text')} or ${under.join(' or ')}`
    }),
  )
}

export function knownCodesPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  any: readonly bigint[],
): Predicate {
  return held(scope, ps, (bind) => [`c.k = any(${bind(arrayLiteral(any), 'bigint[]')})`])
}

/** Finds the rows of `:not` by other codes or the absence key. Undefined if elements may have several codes. */
export function otherCodesPredicate(
  scope: SearchScope,
  code: string,
  none: KeysPredicate,
): JoinPredicate | undefined {
  const { keys, project, type, own } = scope
  if (plannedParameter(type, code, own)?.types.join() !== 'code') return undefined
  const p = keys.param(project, type, code)
  const absent = absentPredicate(scope, [p], code)
  if (absent === undefined) return undefined
  const beside = arrayLiteral([...absent.any, keys.system(p, '')])
  return {
    kind: 'join',
    keys: (bind) => `(${bind(beside, 'bigint[]')} || array(
      select c.k from code c where c.project = ${bind(project, 'int')}
        and ${parameterSql('c', [p], bind)} and c.k <> all(${bind(arrayLiteral(none.any), 'bigint[]')})))`,
    check: () => 'true',
    probe: () => 'true',
    hasStablePlan: true,
    reach: 'row',
    walk: { rows: () => WALK, test: () => 'true' },
  }
}

/** Versions of canonicals that start with one of the texts; `keys` are the keys of the texts themselves. */
export function versionsPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  texts: readonly string[],
  keys: readonly bigint[],
): Predicate {
  const alternatives = (bind: Bind) =>
    texts.map((text) => `starts_with(c.code, ${bind(`${text}.`, 'text')})`)
  return held(scope, ps, alternatives, keys)
}

export function uriContainsPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  values: readonly string[],
): Predicate {
  return held(scope, ps, (bind) =>
    values.map((value) => {
      const text = escaped(unescapeValue(value).toLowerCase())
      return `lower(c.code) like ${like(`%${text}%`, bind)}`
    }),
  )
}

/** `:above` of a uri needs no dictionary: the value itself and its parent paths. */
export function aboveKeys(
  { keys }: SearchScope,
  ps: readonly bigint[],
  values: readonly string[],
): bigint[] {
  return values.flatMap((value) => {
    const uri = unescapeValue(value).replace(/\/$/, '')
    const borders = [...uri.matchAll(/\//g)].map(({ index }) => uri.slice(0, index))
    const paths = [...borders, uri].flatMap((path) => [path, `${path}/`])
    return ps.flatMap((p) => paths.map((path) => keys.uri(p, path)))
  })
}

function held(
  { project }: SearchScope,
  ps: readonly bigint[],
  alternatives: (bind: Bind) => readonly string[],
  keys: readonly bigint[] = [],
): Predicate {
  const own = (bind: Bind) => `(${bind(arrayLiteral(keys), 'bigint[]')} || array(
    select c.k from code c where c.project = ${bind(project, 'int')}
      and ${parameterSql('c', ps, bind)}
      and (${alternatives(bind)
        .map((sql) => `(${sql})`)
        .join(' or ')})))`
  const check = (found: string) =>
    `exists (select 1 from unnest(r.keys) x where ${isHeldSql('x', found)})`
  return {
    kind: 'join',
    keys: own,
    check,
    probe: (bind) => `r.keys && ${own(bind)}`,
    hasStablePlan: true,
    walk: { rows: () => WALK, test: (bind) => check(own(bind)) },
  }
}

/** Few keys may match many rows, so this many are walked first. */
const WALK = 1000

const like = (pattern: string, bind: Bind) => bind(pattern, 'text')
const escaped = (text: string) => text.replace(/[\\%_]/g, '\\$&')

// Elements without a system, and the system implied by their binding

export const BARE: ReadonlySet<string> = new Set(['code', 'boolean', 'string', 'id'])

/** True when the bound value set implies the system, or none is named. https://hl7.org/fhir/R4/search.html#token */
export function isImplied(
  { type, own }: TypeScope,
  code: string,
  { system, code: value }: TokenValue,
): boolean {
  if (system === undefined || value === undefined) return false
  const types = plannedParameter(type, code, own)?.types ?? []
  if (types.length === 0 || !types.every((one) => BARE.has(one))) return false
  if (system === '') return true
  return isBoundTo({ type, own }, code, system, value)
}

/** Codes of `system|` for elements with the system implied by their binding. */
export function impliedCodes(
  { type, own }: TypeScope,
  code: string,
  { system, code: value }: TokenValue,
): readonly string[] {
  if (!system || value !== undefined) return []
  const types = plannedParameter(type, code, own)?.types ?? []
  if (!types.every((one) => BARE.has(one))) return []
  return boundSets({ type, own }, code).flatMap((codes) => listed(codes, system))
}

/** True for a composite component that is a code bound to a value set with this system. */
export function isImpliedPart(place: TypeScope, code: string, { system, code: value }: TokenValue) {
  if (!system || value === undefined) return false
  return isBoundTo(place, code, system, value)
}

function isBoundTo(place: TypeScope, code: string, system: string, value: string): boolean {
  return boundSets(place, code).some((codes) => listed(codes, system).includes(value))
}

function listed(codes: Codes, system: string): readonly string[] {
  return Object.hasOwn(codes, system) ? (codes[system] ?? []) : []
}

type TypeScope = Pick<SearchScope, 'type' | 'own'>

function boundSets({ type, own }: TypeScope, code: string): readonly Codes[] {
  const paths = pathsRead(type, code, own) ?? []
  return typeElements(type)
    .filter(({ path, types }) => paths.includes(path) && types.some((one) => one.code === 'code'))
    .map(({ binding = '' }) => valueSet(canonicalUrl(binding))?.systems)
    .filter((codes) => codes !== undefined)
}

type Codes = Readonly<Record<string, readonly string[]>>
