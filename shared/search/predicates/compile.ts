/** Compiles a Criterion to a predicate on a row of `resource r`, with one function per parameter type. */
import { badRequest, notSupported } from '../../core/errors.ts'
import { COMPARTMENTS, searchParameter, storedParameters } from '../../fhir/definitions.ts'
import type { SearchParameter } from '../../fhir/definitions-data.ts'
import type { Bind } from '../../postgres/statement.ts'
import { CANONICAL_KEY } from '../../store/index/derivation.ts'
import { isCanonicalParameter, plannedParameter } from '../../store/index/index-plan.ts'
import { normalId } from '../../store/rows/context.ts'
import {
  type Condition,
  type ConditionOf,
  type Criterion,
  isCondition,
  isOfWords,
  type ResourceTypeModifier,
} from '../language/search-request.ts'
import {
  parseOfTypeValue,
  parseReferenceValue,
  parseTokenValue,
  unescapeValue,
} from '../language/values.ts'
import { compositePredicate } from './composites.ts'
import {
  aboveKeys,
  BARE,
  belowPredicate,
  codeTextPredicate,
  impliedCodes,
  isImplied,
  knownCodesPredicate,
  systemPredicate,
  uriContainsPredicate,
  versionsPredicate,
} from './dictionary.ts'
import { joinPredicate } from './joins.ts'
import { lastUpdatedPredicate, mainDatePredicate } from './main-date.ts'
import {
  absentPredicate,
  alternativeSql,
  filter,
  isMissing,
  type Predicate,
  predicateReadScope,
  predicateSql,
  type SearchScope,
} from './predicate.ts'
import { datePredicate, nearPredicate, numberPredicate, quantityPredicate } from './ranges.ts'
import { containsPredicate, stringPredicate } from './strings.ts'
import { wordsPredicate } from './texts.ts'

export function compilePredicate(scope: SearchScope, criterion: Criterion): Predicate {
  if (isCondition(criterion)) return conditionPredicate(scope, criterion)
  switch (criterion.kind) {
    case 'chain':
    case 'has':
      return joinPredicate(scope, criterion, compilePredicate)
    case 'compartment':
      return { kind: 'keys', any: [scope.keys.compartment(scope.project, criterion.reference)] }
    case 'not':
      return negation(compilePredicate(scope, criterion.criterion))
    case 'and':
    case 'or':
      return groupPredicate(
        criterion.kind,
        criterion.criteria.map((item) => compilePredicate(scope, item)),
      )
    default:
      return criterion satisfies never
  }
}

/** An `or` narrows if every alternative does, an `and` if one part does. */
function groupPredicate(kind: 'and' | 'or', predicates: readonly Predicate[]): Predicate {
  const isNarrow = ({ kind }: Predicate) => kind === 'keys' || kind === 'ids' || kind === 'narrow'
  const narrows = kind === 'or' ? predicates.every(isNarrow) : predicates.some(isNarrow)
  const sql = (bind: Bind) =>
    `(${predicates.map((predicate) => alternativeSql(predicate, bind)).join(` ${kind} `)})`
  return { kind: narrows ? 'narrow' : 'filter', sql }
}

function conditionPredicate(scope: SearchScope, condition: Condition): Predicate {
  const { type, keys, project, own } = scope
  const { code, values, modifier } = condition
  if (code === '_id') return idPredicate(scope, condition)
  if (ALWAYS.has(code) && modifier === 'missing') {
    return filter(() => (isMissing(values) ? 'false' : 'true'))
  }
  if (code === '_lastUpdated' && condition.type === 'date') return lastUpdatedPredicate(condition)
  if (code === '_compartment') return compartmentPredicate(scope, values)
  if (isOfWords(code)) return wordsPredicate(scope, condition)
  if (code === '_project') throw notSupported('_project belongs to the searched type itself')
  const parameter = searchParameter(type, code, own)
  if (parameter === undefined) throw badRequest(`Unknown search parameter: ${code}`)
  if (parameter.type !== condition.type)
    throw badRequest(`${code} is no longer a ${condition.type}`)
  const ps = storedParameters(type, code).map((stored) => keys.param(project, type, stored))
  switch (condition.type) {
    case 'token':
      return negated(modifier, tokenPredicate(scope, ps, condition))
    case 'reference':
      return negated(modifier, referencePredicate(scope, ps, parameter, condition))
    case 'uri':
      return uriPredicate(scope, ps, condition)
    case 'string':
      return stringPredicate(scope, ps, condition)
    case 'date':
      return mainDatePredicate(scope, condition) ?? datePredicate(scope, ps, condition)
    case 'number':
      return numberPredicate(scope, ps, condition)
    case 'quantity':
      return quantityPredicate(scope, ps, condition)
    case 'composite':
      return compositePredicate(scope, ps, parameter, condition)
    case 'special':
      return nearPredicate(scope, ps, condition)
    default:
      return condition satisfies never
  }
}

const ALWAYS: ReadonlySet<string> = new Set(['_lastUpdated', '_project'])

function negated(modifier: string | undefined, predicate: Predicate): Predicate {
  return modifier === 'not' || modifier === 'not-in' ? negation(predicate) : predicate
}

function negation(predicate: Predicate): Predicate {
  return {
    kind: 'filter',
    sql: (bind) => `not coalesce(${predicateSql(predicate, bind, true)}, false)`,
    reach: predicateReadScope(predicate) === 'row' ? 'row' : undefined,
    ...(predicate.kind === 'keys' ? { none: predicate } : {}),
  }
}

/** Compiles `:missing` to the presence key, or to the absence key where few rows lack a value. */
function presence(
  scope: SearchScope,
  ps: readonly bigint[],
  { code, values }: Condition,
): Predicate {
  const predicate: Predicate = { kind: 'keys', any: ps.map((p) => scope.keys.present(p)) }
  if (!isMissing(values)) return predicate
  const absent = absentPredicate(scope, ps, code)
  if (absent !== undefined) return absent
  return {
    kind: 'filter',
    sql: (bind) => `not (${predicateSql(predicate, bind)})`,
    reach: 'row',
    none: predicate,
  }
}

function idPredicate({ keys, type }: SearchScope, { values, modifier }: Condition): Predicate {
  const ids = values.map((value) => {
    const text = unescapeValue(value)
    const id = text.startsWith(`${type}/`) ? text.slice(type.length + 1) : text
    return keys.rowId(type, normalId(id))
  })
  if (modifier === 'not') return filter((bind) => `r.id <> all(${bind(ids, 'uuid[]')})`, 'row')
  if (modifier !== undefined) throw badRequest(`Invalid modifier :${modifier} for _id`, '_id')
  return { kind: 'narrow', sql: (bind) => `r.id = any(${bind(ids, 'uuid[]')})`, reach: 'row' }
}

/** Tests for a standard compartment or an account; a bare id may belong to any compartment. */
function compartmentPredicate(
  { keys, project, type }: SearchScope,
  values: readonly string[],
): Predicate {
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

function tokenPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  condition: ConditionOf<'token'>,
): Predicate {
  const { keys } = scope
  const { modifier, values } = condition
  switch (modifier) {
    case 'missing':
      return presence(scope, ps, condition)
    case 'text':
      return codeTextPredicate(scope, ps, values)
    case 'contains':
      return containsPredicate(scope, ps, values.map(unescapeValue))
    case 'of-type': {
      const any = values
        .map(parseOfTypeValue)
        .flatMap(({ system, code, value }) => ps.map((p) => keys.ofType(p, system, code, value)))
      return { kind: 'keys', any }
    }
    case 'in':
    case 'not-in':
    case 'above':
    case 'below':
      return codeListPredicate(scope, ps, condition)
    case 'not':
    case undefined:
      return codesPredicate(scope, ps, condition)
    default:
      return modifier satisfies never
  }
}

/** Tests for `system|code`, its parts, and codes that imply their system. */
function codesPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  { code, values }: ConditionOf<'token'>,
): Predicate {
  const { keys } = scope
  const isFolded = code === 'email' || code === 'phone'
  const isTruth = plannedParameter(scope.type, code, scope.own)?.types.includes('boolean') === true
  const folded = (text: string) =>
    isFolded || (isTruth && /^(true|false)$/i.test(text)) ? text.toLowerCase() : text
  const any: bigint[] = []
  const systems: string[] = []
  for (const value of values) {
    const token = parseTokenValue(value)
    if (token.code === undefined) systems.push(value)
    // `email` and `phone` imply the system.
    const system = isFolded || isImplied(scope, code, token) ? undefined : token.system
    for (const p of ps) {
      for (const listed of impliedCodes(scope, code, token)) {
        any.push(keys.token(p, undefined, listed))
      }
      if (token.code === undefined) any.push(keys.system(p, token.system ?? ''))
      else any.push(keys.token(p, system, folded(token.code)))
    }
  }
  if (systems.length > 0) return systemPredicate(scope, ps, systems, any)
  const isIdentifying = plannedParameter(scope.type, code, scope.own)?.types.includes('Identifier')
  return { kind: 'keys', any, ...(isIdentifying ? { isIdentifying } : {}) }
}

/** More keys than this are first reduced to those in the dictionary. */
const MANY_KEYS = 64

function codeListPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  condition: ConditionOf<'token'>,
): Predicate {
  const { keys, type, own } = scope
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
  return any.length <= MANY_KEYS ? { kind: 'keys', any } : knownCodesPredicate(scope, ps, any)
}

function referencePredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  parameter: SearchParameter,
  condition: ConditionOf<'reference'>,
): Predicate {
  const { keys, project } = scope
  const { code, modifier, values } = condition
  if (modifier === 'missing') return presence(scope, ps, condition)
  if (modifier === 'identifier') {
    const logical = { code: '', type: 'token', modifier: undefined, values } as const
    return codesPredicate(
      scope,
      ps.map((p) => keys.logical(p)),
      logical,
    )
  }
  if (modifier === 'above' || modifier === 'below') {
    if (!isCanonicalParameter(scope.type, code, scope.own)) {
      const why = 'it has no versions, and hierarchies of resources are not walked'
      throw badRequest(`Invalid modifier :${modifier} for ${code}: ${why}`, code)
    }
    return aboveOrBelowPredicate(scope, ps, modifier, values)
  }
  const targetType: ResourceTypeModifier | undefined = modifier === 'not' ? undefined : modifier
  const any = values.flatMap((value) =>
    parseReferenceValue(parameter, targetType, value).flatMap((reference) =>
      ps.map((p) => keys.reference(p, keys.target(project, reference))),
    ),
  )
  return { kind: 'keys', any }
}

/** Tests a canonical: versions below `url|1` start with it and a dot, those above are its prefixes. */
function aboveOrBelowPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  modifier: 'above' | 'below',
  values: readonly string[],
): Predicate {
  const { keys, project } = scope
  const targetKeys = (canonical: string) =>
    ps.map((p) => keys.reference(p, keys.target(project, canonical)))
  const texts = values.map(unescapeValue)
  if (modifier === 'below') return versionsPredicate(scope, ps, texts, texts.flatMap(targetKeys))
  const any = texts.flatMap((text) => {
    const bar = text.indexOf('|')
    const ends = bar < 0 ? [] : [...text.matchAll(/\./g)].map(({ index }) => index)
    return [text, ...ends.filter((at) => at > bar).map((at) => text.slice(0, at))].flatMap(
      targetKeys,
    )
  })
  return { kind: 'keys', any }
}

function uriPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  condition: ConditionOf<'uri'>,
): Predicate {
  const { code, modifier, values } = condition
  if (modifier === 'missing') return presence(scope, ps, condition)
  if (modifier === 'below') return belowPredicate(scope, ps, values)
  if (modifier === 'contains') return uriContainsPredicate(scope, ps, values)
  if (modifier === 'above') return { kind: 'keys', any: aboveKeys(scope, ps, values) }
  modifier satisfies undefined
  const texts = values.map(unescapeValue)
  const any = texts.flatMap((text) => ps.map((p) => scope.keys.uri(p, text)))
  return { kind: 'keys', any: code === 'url' ? [...any, ...canonicalKeys(scope, texts)] : any }
}

/** A resource is also indexed by its versioned url. */
function canonicalKeys({ keys, project, type }: SearchScope, texts: readonly string[]): bigint[] {
  const p = keys.param(project, type, CANONICAL_KEY)
  return texts
    .filter((text) => text.includes('|'))
    .map((text) => keys.reference(p, keys.target(project, text)))
}
