/**
 * Grants of a policy compiled for both evaluators of criteria, predicates on rows `r` for PostgreSQL and a matcher on the
 * index rows of a content; and the rows of a type that a Principal sees by them, which every search, export and count
 * takes from here.
 */
import { hiddenParameter } from '../../core/errors.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Bind } from '../../postgres/statement.ts'
import { pathsRead } from '../../search/language/parameter-paths.ts'
import { compilePredicate } from '../../search/predicates/conditions.ts'
import {
  filter,
  oneRowSql,
  type Predicate,
  predicateSql,
  type SearchScope,
  widestReadScope,
} from '../../search/predicates/predicate.ts'
import { projectKey, type StoreContext } from '../../store/rows/context.ts'
import { REGISTRY_PROJECT } from '../../store/rows/tenants.ts'
import type { Grant, Interaction } from '../grant.ts'
import { overlaps } from '../paths.ts'
import { grantsFor, may, REGISTRY_TYPES } from '../policy.ts'
import type { Principal } from '../principal.ts'
import {
  compileRowMatcher,
  dependsOnRowOnly,
  type IndexedRow,
  type RowMatcher,
} from './match-row.ts'
import { memoFor } from './memo.ts'

/**
 * The Project and type of rows; `own` are search parameters that they are indexed by besides the standard's,
 * `units` those that a policy may have to convert to.
 */
export type TypeScope = Pick<SearchScope, 'keys' | 'project' | 'type' | 'own' | 'units'>

/** `project` is that of the rows: others than its own do not know the parameters of the Principal's. */
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
  /** The criteria, AND-ed. */
  readonly tests: readonly Predicate[]
  /** The criteria in memory; undefined where some take PostgreSQL. */
  readonly matches: RowMatcher | undefined
  /** The criteria that memory can decide. */
  readonly matchesKnown: RowMatcher
  /** The others, if they look at nothing of the resource but its keys and its time; else undefined. */
  readonly left: readonly Predicate[] | undefined
}

export function compileGrant(scope: TypeScope, grant: Grant): CompiledGrant {
  return compiled(grant, typeScopeKey(scope), () => compile(scope, grant))
}

const compiled = memoFor<Grant, CompiledGrant>()

function compile(scope: TypeScope, { criteria }: Grant): CompiledGrant {
  const scene = policyScene(scope)
  try {
    const matchers = criteria.map((criterion) => compileRowMatcher(scene, criterion))
    const known = matchers.filter((matcher) => matcher !== undefined)
    const left = criteria.filter((_, i) => matchers[i] === undefined)
    const matchesKnown = (row: IndexedRow) => known.every((matches) => matches(row))
    const isOfRow = left.every((criterion) => dependsOnRowOnly(scene, criterion))
    return {
      tests: criteria.map((criterion) => compilePredicate(scene, criterion)),
      matches: left.length === 0 ? matchesKnown : undefined,
      matchesKnown,
      left: isOfRow ? left.map((criterion) => compilePredicate(scene, criterion)) : undefined,
    }
  } catch {
    // Criteria that no statement can test (a chain into the registry) let nothing through.
    const no = () => false
    return { tests: [filter(() => 'false')], matches: no, matchesKnown: no, left: [] }
  }
}

function policyScene(scope: TypeScope): SearchScope {
  return {
    ...scope,
    isPolicy: true,
    visible: [],
    enter: (type) =>
      policyScene({
        ...scope,
        type,
        project: REGISTRY_TYPES.has(type) ? REGISTRY_PROJECT : scope.project,
      }),
  }
}

/** SQL that is true for the rows that fulfil all tests. Never a condition of an index. */
export function allSql(predicates: readonly Predicate[], bind: Bind): string {
  return andSql(predicates, (predicate) => predicateSql(predicate, bind, true))
}

/** The same for few rows: what is at the other end of a join is looked up for each. */
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
 * Tests that together let through what one of the grants lets through; the first that fits a row governs
 * it, and rows whose governing grant hides what `codes` read are left out. Undefined: all are.
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

/** Grants are kept with the rules of a session; callers choose the codes. */
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
  const wider = widerTest(alternatives)
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

/**
 * The tests of a search with those of a policy, by which rows are found only where it lets few through
 * or nothing else narrows the search; elsewhere it filters what the search finds.
 */
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

/** Keys of which every row that is let through holds one: by them rows are found, and counted. */
function widerTest(alternatives: readonly Alternative[]): Predicate | undefined {
  const any = new Set<bigint>()
  for (const { tests: predicates } of alternatives) {
    const narrow = predicates.find((predicate) => predicate.kind === 'keys')
    if (narrow === undefined) return undefined
    for (const key of narrow.any) any.add(key)
  }
  return { kind: 'keys', any: [...any] }
}

/** True when an element that one of the parameters reads is hidden by the grant. */
export function hidesAny(
  { hidden }: Pick<Grant, 'hidden'>,
  type: string,
  codes: readonly string[],
  own: OwnParameters | undefined,
): boolean {
  if (hidden.length === 0) return false
  return codes.some((code) => {
    const paths = pathsRead(type, code, own)
    return paths?.some((path) => hidden.some((one) => overlaps(type, path, one))) ?? true
  })
}

interface VisibleScope {
  readonly interaction: Interaction
  readonly project?: number | undefined
  readonly units?: SearchScope['units'] | undefined
  readonly codes?: readonly string[] | undefined
  readonly from?: string | undefined
}

/**
 * Undefined for what the Principal may not do; `project` is that of the types outside the registry.
 * `codes` are the parameters that rows are found by. Errors: 403 for one whose element is hidden
 * in every row. `from`: the type that a reference leads here from.
 */
export function visibleRows(
  store: Pick<StoreContext, 'keys'> & Partial<Pick<StoreContext, 'statistics'>>,
  principal: Principal,
  type: string,
  { interaction, project = principal.project.number, units = [], codes = [], from }: VisibleScope,
): SearchScope | undefined {
  // The securityContext of a Binary decides who sees it, not a search.
  if (type === 'Binary' || !may(principal, type, interaction)) return undefined
  const { keys } = store
  const isRegistry = REGISTRY_TYPES.has(type)
  const own: Predicate = { kind: 'keys', any: [projectKey(keys, type, principal.project.id)] }
  const scope = createTypeScope(keys, principal, type, isRegistry ? REGISTRY_PROJECT : project)
  // A member's User may be the platform's: its address shows in the membership, too.
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
    enter: (other, inner) =>
      visibleRows(store, principal, other, {
        interaction: 'search',
        project,
        units,
        codes: inner,
        from: type,
      }),
  }
}

interface HiddenScope {
  readonly interaction: Interaction
  readonly project: number
  readonly codes: readonly string[]
}

/** True when one of the parameters reads what is hidden in every row that may be seen. */
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
