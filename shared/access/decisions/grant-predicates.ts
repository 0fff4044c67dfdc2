/**
 * Compiles grants for both evaluators: SQL predicates on rows `r`, and a matcher on index rows in memory. Every
 * search, export and count takes its visible rows from here.
 */

import { memoFor } from '../../core/cache.ts'
import { hiddenParameter } from '../../core/errors.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Bind } from '../../postgres/statement.ts'
import { compilePredicate } from '../../search/predicates/compile.ts'
import {
  filter,
  oneRowSql,
  type Predicate,
  predicateSql,
  type SearchScope,
  widestReadScope,
} from '../../search/predicates/predicate.ts'
import { projectKey, type StoreContext } from '../../store/rows/context.ts'
import type { Grant, Interaction } from '../grant.ts'
import { hidesAny } from '../hidden.ts'
import { grantsFor, may, REGISTRY_TYPES } from '../policy.ts'
import { type Principal, SYSTEM_PROJECT_NUMBER } from '../principal.ts'
import { isShared } from '../project-context.ts'
import {
  compileRowMatcher,
  dependsOnRowOnly,
  type IndexedRow,
  type RowMatcher,
} from './match-row.ts'

/** `own`: custom search parameters of the rows; `units`: units a policy may convert to. */
export type TypeScope = Pick<SearchScope, 'keys' | 'project' | 'type' | 'own' | 'units'>

/** `project` is the one of the rows: another Project does not have the Principal's custom parameters. */
export function createTypeScope(
  keys: SearchScope['keys'],
  principal: Principal,
  type: string,
  project: number,
): TypeScope {
  const { number, parameters, linked } = principal.project
  const isOwn = project === number
  const home = isOwn ? principal.project : linked?.find((other) => other.number === project)
  return { keys, project, type, own: isOwn ? parameters : undefined, units: home?.units ?? [] }
}

export function typeScopeKey({ project, type, own, units }: TypeScope): string {
  return `${project} ${type} ${own?.stamp ?? ''} ${units.join(' ')}`
}

interface CompiledGrant {
  readonly tests: readonly Predicate[]
  /** The criteria in memory; undefined when some need PostgreSQL. */
  readonly matches: RowMatcher | undefined
  readonly matchesKnown: RowMatcher
  /** The other criteria, if they depend only on keys and date; otherwise undefined. */
  readonly left: readonly Predicate[] | undefined
}

export function compileGrant(scope: TypeScope, grant: Grant): CompiledGrant {
  return compiled(grant, typeScopeKey(scope), () => compile(scope, grant))
}

const compiled = memoFor<Grant, CompiledGrant>()

function compile(typeScope: TypeScope, { criteria }: Grant): CompiledGrant {
  const scope = policyScope(typeScope)
  try {
    const matchers = criteria.map((criterion) => compileRowMatcher(scope, criterion))
    const known = matchers.filter((matcher) => matcher !== undefined)
    const left = criteria.filter((_, i) => matchers[i] === undefined)
    const matchesKnown = (row: IndexedRow) => known.every((matches) => matches(row))
    const isOfRow = left.every((criterion) => dependsOnRowOnly(scope, criterion))
    return {
      tests: criteria.map((criterion) => compilePredicate(scope, criterion)),
      matches: left.length === 0 ? matchesKnown : undefined,
      matchesKnown,
      left: isOfRow ? left.map((criterion) => compilePredicate(scope, criterion)) : undefined,
    }
  } catch {
    // Criteria without SQL (a chain into the registry) let nothing through.
    const no = () => false
    return { tests: [filter(() => 'false')], matches: no, matchesKnown: no, left: [] }
  }
}

function policyScope(scope: TypeScope): SearchScope {
  return {
    ...scope,
    isPolicy: true,
    visible: [],
    enter: (type) =>
      policyScope({
        ...scope,
        type,
        project: REGISTRY_TYPES.has(type) ? SYSTEM_PROJECT_NUMBER : scope.project,
      }),
  }
}

/** SQL that is true for rows that meet all predicates. Never a condition of an index. */
export function allSql(predicates: readonly Predicate[], bind: Bind): string {
  return andSql(predicates, (predicate) => predicateSql(predicate, bind, true))
}

/** Like `allSql`, for few rows: joins are looked up per row. */
export function fewRowsSql(predicates: readonly Predicate[], bind: Bind): string {
  return andSql(predicates, (predicate) => oneRowSql(predicate, bind))
}

function andSql(
  predicates: readonly Predicate[],
  testSql: (predicate: Predicate) => string,
): string {
  if (predicates.length === 0) return 'true'
  return `(${predicates.map((predicate) => `(${testSql(predicate)}) is true`).join(' and ')})`
}

/**
 * Returns undefined when all rows are visible. The first matching grant governs a row, and drops it if it hides an
 * element of `codes`.
 */
export function visibilityPredicates(
  scope: TypeScope,
  grants: readonly Grant[],
  codes: readonly string[],
  own?: OwnParameters,
): readonly Predicate[] | undefined {
  const name = `${typeScopeKey(scope)} ${own?.stamp ?? ''} ${[...new Set(codes)].sort().join()}`
  return visible(grants, name, () => makeVisible(scope, grants, codes, own))
}

const visible = memoFor<readonly Grant[], readonly Predicate[] | undefined>(200)

function makeVisible(
  scope: TypeScope,
  grants: readonly Grant[],
  codes: readonly string[],
  own: OwnParameters | undefined,
): readonly Predicate[] | undefined {
  const hiding: (readonly Predicate[])[] = []
  const alternatives: Alternative[] = []
  for (const grant of grants) {
    const { tests: predicates } = compileGrant(scope, grant)
    if (hidesAny(grant, scope.type, codes, own)) hiding.push(predicates)
    else alternatives.push({ tests: predicates, not: [...hiding] })
  }
  const [only] = alternatives
  if (only === undefined) return undefined
  if (alternatives.some(({ tests: predicates, not }) => predicates.length + not.length === 0))
    return []
  if (alternatives.length === 1 && only.not.length === 0) return only.tests
  const exactSql = (testsSql: TestsSql) => (bind: Bind) =>
    `(${alternatives.map((one) => anySql(one, bind, testsSql)).join(' or ')})`
  const reach = widestReadScope(
    alternatives.flatMap(({ tests: predicates, not }) => [...predicates, ...not.flat()]),
  )
  const exact: Predicate = {
    kind: 'filter',
    sql: exactSql(allSql),
    few: exactSql(fewRowsSql),
    reach,
  }
  const wider = widerPredicate(alternatives)
  if (wider === undefined) return [exact]
  const isExact = alternatives.every(
    ({ tests: predicates, not }) => predicates.length === 1 && not.length === 0,
  )
  return isExact ? [wider] : [wider, exact]
}

interface Alternative {
  readonly tests: readonly Predicate[]
  /** None of these may hold. */
  readonly not: readonly (readonly Predicate[])[]
}

function anySql({ tests: predicates, not }: Alternative, bind: Bind, testsSql: TestsSql): string {
  const parts = [
    testsSql(predicates, bind),
    ...not.map((other) => `not coalesce(${testsSql(other, bind)}, false)`),
  ]
  return `(${parts.join(' and ')})`
}

type TestsSql = (predicates: readonly Predicate[], bind: Bind) => string

/** The policy drives the lookup if it is selective or nothing else narrows the search; otherwise it filters. */
export function withVisible(
  visible: readonly Predicate[],
  predicates: readonly Predicate[],
  isRare: (predicate: Predicate) => boolean,
): readonly Predicate[] {
  const isNarrowed = predicates.some(({ kind }) => kind !== 'filter')
  const isFew = predicates.some((predicate) => predicate.kind === 'narrow' || isRare(predicate))
  const isNarrower = visible.some(
    (predicate) => isRare(predicate) && (predicate.kind === 'keys' || !isFew),
  )
  if (visible.length === 0 || !isNarrowed || isNarrower) return [...visible, ...predicates]
  const few = (bind: Bind) => fewRowsSql(visible, bind)
  const isCostly = isFew && visible.some(({ kind }) => kind !== 'keys')
  const sql = isFew ? few : (bind: Bind) => allSql(visible, bind)
  return [
    ...predicates,
    { kind: 'filter', sql, few, isCostly, reach: widestReadScope(visible), of: visible },
  ]
}

/** Returns keys of which every visible row holds one, to find and count rows by. */
function widerPredicate(alternatives: readonly Alternative[]): Predicate | undefined {
  const any = new Set<bigint>()
  for (const { tests: predicates } of alternatives) {
    const narrow = predicates.find((predicate) => predicate.kind === 'keys')
    if (narrow === undefined) return undefined
    for (const key of narrow.any) any.add(key)
  }
  return { kind: 'keys', any: [...any] }
}

interface VisibleScope {
  readonly interaction: Interaction
  readonly project?: number | undefined
  readonly units?: SearchScope['units'] | undefined
  readonly codes?: readonly string[] | undefined
  readonly from?: string | undefined
}

/**
 * Undefined when denied. `codes`: parameters of the search; `from`: the type whose reference leads here. Errors: 403
 * for a parameter whose element is hidden in every row.
 */
export function visibleRows(
  store: Pick<StoreContext, 'keys'> & Partial<Pick<StoreContext, 'statistics'>>,
  principal: Principal,
  type: string,
  { interaction, project = principal.project.number, units = [], codes = [], from }: VisibleScope,
): SearchScope | undefined {
  if (type === 'Binary' || !may(principal, type, interaction)) return undefined
  const { keys } = store
  const isRegistry = REGISTRY_TYPES.has(type)
  const own: Predicate = { kind: 'keys', any: [projectKey(keys, type, principal.project.id)] }
  const scope = createTypeScope(keys, principal, type, isRegistry ? SYSTEM_PROJECT_NUMBER : project)
  // A member's User may belong to the platform; its address is in the membership anyway.
  const isMember = type === 'User' && from === 'ProjectMembership'
  const isLimited = isRegistry && !principal.isSuperAdmin && !isMember
  const grants = grantsFor(principal, type, interaction)
  const parameters = principal.project.parameters
  const granted = grants === undefined ? [] : visibilityPredicates(scope, grants, codes, parameters)
  if (granted === undefined) {
    const hidden = codes.find((code) =>
      grants?.every((grant) => hidesAny(grant, type, [code], parameters)),
    )
    throw hiddenParameter(hidden ?? codes[0])
  }
  return {
    ...scope,
    own: parameters,
    units,
    isIndexed: store.statistics?.isIndexed,
    visible: [...(isLimited ? [own] : []), ...granted],
    enter: (other, inner) => {
      if (!isShared(principal, project, other)) return undefined
      return visibleRows(store, principal, other, {
        interaction: 'search',
        project,
        units,
        codes: inner,
        from: type,
      })
    },
  }
}

interface HiddenScope {
  readonly interaction: Interaction
  readonly project: number
  readonly codes: readonly string[]
}

/** True when one of the parameters reads an element that is hidden in every visible row. */
export function isHidden(
  { keys }: Pick<StoreContext, 'keys'>,
  principal: Principal,
  type: string,
  { interaction, project, codes }: HiddenScope,
): boolean {
  const grants = grantsFor(principal, type, interaction)
  if (grants === undefined || grants.length === 0) return false
  const parameters = principal.project.parameters
  return (
    visibilityPredicates(
      createTypeScope(keys, principal, type, project),
      grants,
      codes,
      parameters,
    ) === undefined
  )
}
