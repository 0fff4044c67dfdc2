/** One Criterion of a search → one test on a row of `resource r`; a function a parameter type. */
import { badRequest, notSupported } from '../../../errors.ts'
import {
  COMPARTMENTS,
  resourceTypes,
  searchParameter,
  storedParameters,
} from '../../../fhir/definitions.ts'
import type { SearchParameter } from '../../../fhir/definitions-data.ts'
import { isOfWords } from '../../../fhir/searched-text.ts'
import type { Bind } from '../../../platform/postgres/statement.ts'
import { type Condition, type Criterion, isCondition } from '../../../query/search-request.ts'
import {
  parseOfTypeValue,
  parseReferenceValue,
  parseTokenValue,
  unescapeValue,
} from '../../../query/values.ts'
import { isCanonicalParameter, plannedParameter } from '../../index/index-plan.ts'
import { CANONICAL_KEY } from '../../index/type-constants.ts'
import { normalId } from '../../rows/context.ts'
import { compositeTest } from './composites.ts'
import {
  aboveKeys,
  BARE,
  belowTest,
  impliedCodes,
  isImplied,
  knownTest,
  systemTest,
  textTest,
  uriContainsTest,
  versionsTest,
} from './dictionary.ts'
import { joinTest } from './joins.ts'
import {
  dateTest,
  lastUpdatedTest,
  mainDateTest,
  nearTest,
  numberTest,
  quantityTest,
} from './ranges.ts'
import { containsTest, stringTest } from './strings.ts'
import {
  absentTest,
  alternativeSql,
  filter,
  isMissing,
  reachOf,
  type Scene,
  sqlOf,
  type Test,
} from './test.ts'
import { wordsTest } from './texts.ts'

/** Errors: 400 for what cannot be searched. */
export function testOf(scene: Scene, criterion: Criterion): Test {
  if (isCondition(criterion)) return conditionTest(scene, criterion)
  switch (criterion.kind) {
    case 'chain':
    case 'has':
      return joinTest(scene, criterion, testOf)
    case 'compartment':
      return { kind: 'keys', any: [scene.keys.compartment(scene.project, criterion.reference)] }
    case 'not':
      return negation(testOf(scene, criterion.criterion))
    case 'and':
    case 'or':
      return groupTest(
        criterion.kind,
        criterion.criteria.map((item) => testOf(scene, item)),
      )
    default:
      return criterion satisfies never
  }
}

/** An `or` narrows when each alternative does, an `and` when one part does. */
function groupTest(kind: 'and' | 'or', tests: readonly Test[]): Test {
  const isNarrow = ({ kind }: Test) => kind === 'keys' || kind === 'ids' || kind === 'narrow'
  const narrows = kind === 'or' ? tests.every(isNarrow) : tests.some(isNarrow)
  const sql = (bind: Bind) =>
    `(${tests.map((test) => alternativeSql(test, bind)).join(` ${kind} `)})`
  return { kind: narrows ? 'narrow' : 'filter', sql }
}

function conditionTest(scene: Scene, condition: Condition): Test {
  const { type, keys, project, own } = scene
  const { code, values, modifier } = condition
  if (code === '_id') return idTest(scene, condition)
  if (ALWAYS.has(code) && modifier === 'missing') {
    return filter(() => (isMissing(values) ? 'false' : 'true'))
  }
  if (code === '_lastUpdated') return lastUpdatedTest(condition)
  if (code === '_compartment') return compartmentTest(scene, values)
  if (isOfWords(code)) return wordsTest(scene, condition)
  if (code === '_project') throw notSupported('_project belongs to the searched type itself')
  const parameter = searchParameter(type, code, own)
  if (parameter === undefined) throw badRequest(`Unknown search parameter: ${code}`)
  const ps = storedParameters(type, code).map((stored) => keys.param(project, type, stored))
  switch (parameter.type) {
    case 'token':
      if (modifier !== undefined && LISTED.has(modifier)) {
        return negated(modifier, codesTest(scene, ps, condition))
      }
      return negated(modifier, tokenTest(scene, ps, condition))
    case 'reference':
      return negated(modifier, referenceTest(scene, ps, parameter, condition))
    case 'uri':
      return uriTest(scene, ps, condition)
    case 'string':
      return stringTest(scene, ps, condition)
    case 'date':
      return mainDateTest(scene, condition) ?? dateTest(scene, ps, condition)
    case 'number':
      return numberTest(scene, ps, condition)
    case 'quantity':
      return quantityTest(scene, ps, condition)
    case 'composite':
      return compositeTest(scene, ps, parameter, condition)
    case 'special':
      return nearTest(scene, ps, condition)
    default:
      return parameter.type satisfies never
  }
}

/** Parameters that every resource has. */
const ALWAYS: ReadonlySet<string> = new Set(['_lastUpdated', '_project'])

function negated(modifier: string | undefined, test: Test): Test {
  return modifier === 'not' || modifier === 'not-in' ? negation(test) : test
}

function negation(test: Test): Test {
  return {
    kind: 'filter',
    sql: (bind) => `not coalesce(${sqlOf(test, bind, true)}, false)`,
    reach: reachOf(test) === 'row' ? 'row' : undefined,
    ...(test.kind === 'keys' ? { none: test } : {}),
  }
}

/** `:missing` by the presence key, or by that of the absence where few lack a value. */
function presence(scene: Scene, ps: readonly bigint[], { code, values }: Condition): Test {
  const test: Test = { kind: 'keys', any: ps.map((p) => scene.keys.present(p)) }
  if (!isMissing(values)) return test
  const absent = absentTest(scene, ps, code)
  if (absent !== undefined) return absent
  return { kind: 'filter', sql: (bind) => `not (${sqlOf(test, bind)})`, reach: 'row', none: test }
}

function idTest({ keys, type }: Scene, { values, modifier }: Condition): Test {
  const ids = values.map((value) => {
    const text = unescapeValue(value)
    const id = text.startsWith(`${type}/`) ? text.slice(type.length + 1) : text
    return keys.rowId(type, normalId(id))
  })
  if (modifier === 'not') return filter((bind) => `r.id <> all(${bind(ids, 'uuid[]')})`, 'row')
  return { kind: 'narrow', sql: (bind) => `r.id = any(${bind(ids, 'uuid[]')})`, reach: 'row' }
}

/** A compartment of the standard, or an account; a bare id may be that of any compartment. */
function compartmentTest({ keys, project, type }: Scene, values: readonly string[]): Test {
  const account = keys.param(project, type, '_account')
  const any = values.flatMap((value) => {
    const text = unescapeValue(value)
    const names = text.includes('/') ? [text] : COMPARTMENTS.map((kind) => `${kind}/${text}`)
    return names.flatMap((name) => [
      keys.compartment(project, name),
      keys.reference(account, keys.target(project, name)),
    ])
  })
  return { kind: 'keys', any }
}

function tokenTest(scene: Scene, ps: readonly bigint[], condition: Condition): Test {
  const { keys } = scene
  const { code, modifier, values } = condition
  if (modifier === 'missing') return presence(scene, ps, condition)
  if (modifier === 'text') return textTest(scene, ps, values)
  if (modifier === 'contains') return containsTest(scene, ps, values.map(unescapeValue))
  if (modifier === 'of-type') {
    const any = values
      .map(parseOfTypeValue)
      .flatMap(({ system, code, value }) => ps.map((p) => keys.ofType(p, system, code, value)))
    return { kind: 'keys', any }
  }
  const isFolded = code === 'email' || code === 'phone'
  const isTruth = plannedParameter(scene.type, code, scene.own)?.types.includes('boolean') === true
  const folded = (text: string) =>
    isFolded || (isTruth && /^(true|false)$/i.test(text)) ? text.toLowerCase() : text
  const any: bigint[] = []
  const systems: string[] = []
  for (const value of values) {
    const token = parseTokenValue(value)
    if (token.code === undefined) systems.push(value)
    // `email` and `phone` are the systems of what they find.
    const system = isFolded || isImplied(scene, code, token) ? undefined : token.system
    for (const p of ps) {
      for (const listed of impliedCodes(scene, code, token)) {
        any.push(keys.token(p, undefined, listed))
      }
      if (token.code === undefined) any.push(keys.system(p, token.system ?? ''))
      else any.push(keys.token(p, system, folded(token.code)))
    }
  }
  if (systems.length > 0) return systemTest(scene, ps, systems, any)
  const isIdentifying = plannedParameter(scene.type, code, scene.own)?.types.includes('Identifier')
  return { kind: 'keys', any, ...(isIdentifying ? { isIdentifying } : {}) }
}

const LISTED: ReadonlySet<string> = new Set(['in', 'not-in', 'above', 'below'])
/** More keys are looked for in the dictionary first: few of them are in use. */
const MANY_KEYS = 64

/** One of the codes that a ValueSet or a hierarchy lists. */
function codesTest(scene: Scene, ps: readonly bigint[], condition: Condition): Test {
  const { keys, type, own } = scene
  const { code, modifier, codes } = condition
  if (codes === undefined) throw notSupported(`:${modifier} is not supported here`, code)
  const types = storedParameters(type, code).flatMap(
    (stored) => plannedParameter(type, stored, own)?.types ?? [],
  )
  const isBare = types.some((one) => BARE.has(one))
  const any = codes.flatMap((listed) =>
    ps.flatMap((p) => [
      keys.token(p, listed.system, listed.code),
      ...(isBare ? [keys.token(p, undefined, listed.code)] : []),
    ]),
  )
  return any.length <= MANY_KEYS ? { kind: 'keys', any } : knownTest(scene, ps, any)
}

function referenceTest(
  scene: Scene,
  ps: readonly bigint[],
  parameter: SearchParameter,
  condition: Condition,
): Test {
  const { keys, project } = scene
  const { code, modifier, values } = condition
  if (modifier === 'missing') return presence(scene, ps, condition)
  if (modifier === 'identifier') {
    const logical = { code: '', type: 'token', modifier: undefined, values } as const
    return tokenTest(
      scene,
      ps.map((p) => keys.logical(p)),
      logical,
    )
  }
  if (modifier === 'above' || modifier === 'below') {
    if (!isCanonicalParameter(scene.type, code, scene.own)) {
      const why = 'it has no versions, and hierarchies of resources are not walked'
      throw badRequest(`Invalid modifier :${modifier} for ${code}: ${why}`, code)
    }
    return versionTest(scene, ps, modifier, values)
  }
  const targetType = resourceTypes.includes(modifier ?? '') ? modifier : undefined
  const any = values.flatMap((value) =>
    parseReferenceValue(parameter, targetType, value).flatMap((reference) =>
      ps.map((p) => keys.reference(p, keys.target(project, reference))),
    ),
  )
  return { kind: 'keys', any }
}

/** Tests a canonical: versions below `url|1` begin with it and a point, those above it are its beginnings. */
function versionTest(
  scene: Scene,
  ps: readonly bigint[],
  modifier: 'above' | 'below',
  values: readonly string[],
): Test {
  const { keys, project } = scene
  const keysOf = (canonical: string) =>
    ps.map((p) => keys.reference(p, keys.target(project, canonical)))
  const texts = values.map(unescapeValue)
  if (modifier === 'below') return versionsTest(scene, ps, texts, texts.flatMap(keysOf))
  const any = texts.flatMap((text) => {
    const bar = text.indexOf('|')
    const ends = bar < 0 ? [] : [...text.matchAll(/\./g)].map(({ index }) => index)
    return [text, ...ends.filter((at) => at > bar).map((at) => text.slice(0, at))].flatMap(keysOf)
  })
  return { kind: 'keys', any }
}

function uriTest(scene: Scene, ps: readonly bigint[], condition: Condition): Test {
  const { code, modifier, values } = condition
  if (modifier === 'missing') return presence(scene, ps, condition)
  if (modifier === 'below') return belowTest(scene, ps, values)
  if (modifier === 'contains') return uriContainsTest(scene, ps, values)
  if (modifier === 'above') return { kind: 'keys', any: aboveKeys(scene, ps, values) }
  const texts = values.map(unescapeValue)
  const any = texts.flatMap((text) => ps.map((p) => scene.keys.uri(p, text)))
  return { kind: 'keys', any: code === 'url' ? [...any, ...canonicalKeys(scene, texts)] : any }
}

/** A resource is found by its url with its version, too. */
function canonicalKeys({ keys, project, type }: Scene, texts: readonly string[]): bigint[] {
  const p = keys.param(project, type, CANONICAL_KEY)
  return texts
    .filter((text) => text.includes('|'))
    .map((text) => keys.reference(p, keys.target(project, text)))
}
