/**
 * Grants of a policy → tests on a row of `resource r`. Whose rows fulfil the criteria of a grant does not
 * depend on what the Principal may see beyond them: chains of a policy run through all of the project.
 */
import { overlaps } from '../../../access/fields/paths.ts'
import type { Grant, Interaction } from '../../../access/grant.ts'
import { grantsFor, may, REGISTRY_TYPES } from '../../../access/policy.ts'
import type { Principal } from '../../../access/principal.ts'
import { hiddenParameter } from '../../../errors.ts'
import type { OwnParameters } from '../../../fhir/definitions-data.ts'
import type { Bind } from '../../../platform/postgres/statement.ts'
import { pathsRead } from '../../../query/parameter-paths.ts'
import { projectKey, type Store } from '../../rows/context.ts'
import { REGISTRY_PROJECT } from '../../rows/tenants.ts'
import { testOf } from './conditions.ts'
import { type Decision, decisionOf, type HeldRow, takesRowAlone } from './row-decisions.ts'
import { farthest, filter, oneRowSql, type Scene, sqlOf, type Test } from './test.ts'

/**
 * The Project and type of rows; `own` are search parameters that they are indexed by beside the standard's,
 * `units` those that a policy may have to convert to.
 */
export type Place = Pick<Scene, 'keys' | 'project' | 'type' | 'own' | 'units'>

/** `project` is that of the rows: others than its own do not know the parameters of the Principal's. */
export function placeIn(
  keys: Scene['keys'],
  principal: Principal,
  type: string,
  project: number,
): Place {
  const { number, parameters, linked } = principal.project
  const isOwn = project === number
  const home = isOwn ? principal.project : linked?.find((other) => other.number === project)
  const units = home?.units ?? []
  return { keys, project, type, own: isOwn ? parameters : undefined, units }
}

interface GrantTests {
  /** AND-ed. */
  readonly tests: readonly Test[]
  readonly decide: Decision
  /** The criteria that take PostgreSQL, by what a row holds itself; undefined: by more than that. */
  readonly left: readonly Test[] | undefined
  /** The other criteria. */
  readonly decided: (row: HeldRow) => boolean
}

/**
 * Tests that together let through what one of the grants lets through; the first that fits a row governs
 * it, and rows whose governing grant hides what `codes` read are left out. Undefined: all are.
 */
export function visibleTests(
  place: Place,
  grants: readonly Grant[],
  codes: readonly string[],
  own?: OwnParameters,
): readonly Test[] | undefined {
  const name = `${nameOf(place)} ${own?.stamp ?? ''} ${[...new Set(codes)].sort().join()}`
  const known = visible.get(grants) ?? new Map<string, readonly Test[] | undefined>()
  visible.set(grants, known)
  if (known.has(name)) return known.get(name)
  const made = makeVisible(place, grants, codes, own)
  // Callers choose the codes.
  if (known.size === MAX_VISIBLE) known.clear()
  known.set(name, made)
  return made
}

const MAX_VISIBLE = 200
/** Grants are kept with the rules of a session. Measured: a tenth of a millisecond a search. */
const visible = new WeakMap<readonly Grant[], Map<string, readonly Test[] | undefined>>()

function makeVisible(
  place: Place,
  grants: readonly Grant[],
  codes: readonly string[],
  own: OwnParameters | undefined,
): readonly Test[] | undefined {
  const hiding: (readonly Test[])[] = []
  const alternatives: Alternative[] = []
  for (const grant of grants) {
    const { tests } = grantTests(place, grant)
    if (hidesAny(grant, place.type, codes, own)) hiding.push(tests)
    else alternatives.push({ tests, not: [...hiding] })
  }
  const [only] = alternatives
  if (only === undefined) return undefined
  if (alternatives.some(({ tests, not }) => tests.length + not.length === 0)) return []
  if (alternatives.length === 1 && only.not.length === 0) return only.tests
  const exactSql = (testsSql: TestsSql) => (bind: Bind) =>
    `(${alternatives.map((one) => anySql(one, bind, testsSql)).join(' or ')})`
  const reach = farthest(alternatives.flatMap(({ tests, not }) => [...tests, ...not.flat()]))
  const exact: Test = { kind: 'filter', sql: exactSql(allSql), few: exactSql(fewRowsSql), reach }
  const wider = widerTest(alternatives)
  if (wider === undefined) return [exact]
  const isExact = alternatives.every(({ tests, not }) => tests.length === 1 && not.length === 0)
  return isExact ? [wider] : [wider, exact]
}

interface Alternative {
  readonly tests: readonly Test[]
  /** None of these may hold. */
  readonly not: readonly (readonly Test[])[]
}

function anySql({ tests, not }: Alternative, bind: Bind, testsSql: TestsSql): string {
  const parts = [
    testsSql(tests, bind),
    ...not.map((other) => `not coalesce(${testsSql(other, bind)}, false)`),
  ]
  return `(${parts.join(' and ')})`
}

/** SQL that is true for the rows that fulfil all tests. Never a condition of an index. */
export function allSql(tests: readonly Test[], bind: Bind): string {
  if (tests.length === 0) return 'true'
  return `(${tests.map((test) => `(${sqlOf(test, bind, true)}) is true`).join(' and ')})`
}

/** The same for few rows: what is at the other end of a join is looked up for each. */
export function fewRowsSql(tests: readonly Test[], bind: Bind): string {
  if (tests.length === 0) return 'true'
  return `(${tests.map((test) => `(${oneRowSql(test, bind)}) is true`).join(' and ')})`
}

type TestsSql = (tests: readonly Test[], bind: Bind) => string

/**
 * The tests of a search with those of a policy, by which rows are found only where it lets few through
 * or nothing else narrows the search; elsewhere it filters what the search finds.
 */
export function withVisible(
  visible: readonly Test[],
  tests: readonly Test[],
  isRare: (test: Test) => boolean,
): readonly Test[] {
  const isNarrowed = tests.some(({ kind }) => kind !== 'filter')
  const isFew = tests.some((test) => test.kind === 'narrow' || isRare(test))
  const isNarrower = visible.some((test) => isRare(test) && (test.kind === 'keys' || !isFew))
  if (visible.length === 0 || !isNarrowed || isNarrower) return [...visible, ...tests]
  const few = (bind: Bind) => fewRowsSql(visible, bind)
  const isCostly = isFew && visible.some(({ kind }) => kind !== 'keys')
  const sql = isFew ? few : (bind: Bind) => allSql(visible, bind)
  return [...tests, { kind: 'filter', sql, few, isCostly, reach: farthest(visible), of: visible }]
}

/** Keys of which every row that is let through holds one: by them rows are found, and counted. */
function widerTest(alternatives: readonly Alternative[]): Test | undefined {
  const any = new Set<bigint>()
  for (const { tests } of alternatives) {
    const narrow = tests.find((test) => test.kind === 'keys')
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

/** Undefined: it takes PostgreSQL to tell whether a resource fulfils the criteria of the grant. */
export function decideInMemory(place: Place, grant: Grant): Decision {
  return grantTests(place, grant).decide
}

export function grantTests(place: Place, grant: Grant): GrantTests {
  const name = nameOf(place)
  const known = compiled.get(grant)?.get(name)
  if (known !== undefined) return known
  const made = compileGrant(place, grant)
  const byPlace = compiled.get(grant) ?? new Map<string, GrantTests>()
  compiled.set(grant, byPlace.set(name, made))
  return made
}

const compiled = new WeakMap<Grant, Map<string, GrantTests>>()

function nameOf({ project, type, own, units }: Place): string {
  return `${project} ${type} ${own?.stamp ?? ''} ${units.join(' ')}`
}

const NOTHING: GrantTests = {
  tests: [filter(() => 'false')],
  decide: () => false,
  left: [],
  decided: () => false,
}

function compileGrant(place: Place, { criteria }: Grant): GrantTests {
  const scene = policyScene(place)
  try {
    const tests = criteria.map((criterion) => testOf(scene, criterion))
    const decisions = criteria.map((criterion) => decisionOf(scene, criterion))
    const known = decisions.filter((decide) => decide !== undefined)
    const left = criteria.filter((_, i) => decisions[i] === undefined)
    const decided = (row: HeldRow) => known.every((decide) => decide(row))
    const isOfRow = left.every((criterion) => takesRowAlone(scene, criterion))
    return {
      tests,
      decide: left.length === 0 ? decided : undefined,
      left: isOfRow ? left.map((criterion) => testOf(scene, criterion)) : undefined,
      decided,
    }
  } catch {
    // Criteria that no statement can test (a chain into the registry) let nothing through.
    return NOTHING
  }
}

function policyScene(place: Place): Scene {
  return {
    ...place,
    isPolicy: true,
    visible: [],
    enter: (other) =>
      policyScene({
        ...place,
        type: other,
        project: REGISTRY_TYPES.has(other) ? REGISTRY_PROJECT : place.project,
      }),
  }
}

// The tests for rows that a Principal sees of a type: every statement of a search takes them from here.

interface VisibleScope {
  readonly interaction: Interaction
  readonly project?: number | undefined
  readonly units?: Scene['units'] | undefined
  readonly codes?: readonly string[] | undefined
  readonly from?: string | undefined
}

/**
 * Undefined for what the Principal may not do; `project` is that of the types outside the registry.
 * `codes` are the parameters that rows are found by. Errors: 403 for one whose element is hidden
 * in every row. `from`: the type that a reference leads here from.
 */
export function visibleRows(
  store: Pick<Store, 'keys'> & Partial<Pick<Store, 'statistics'>>,
  principal: Principal,
  type: string,
  { interaction, project = principal.project.number, units = [], codes = [], from }: VisibleScope,
): Scene | undefined {
  // The securityContext of a Binary decides who sees it, not a search.
  if (type === 'Binary' || !may(principal, type, interaction)) return undefined
  const { keys } = store
  const isRegistry = REGISTRY_TYPES.has(type)
  const own: Test = { kind: 'keys', any: [projectKey(keys, type, principal.project.id)] }
  const place = placeIn(keys, principal, type, isRegistry ? REGISTRY_PROJECT : project)
  // A member's User may be the platform's: its address shows in the membership, too.
  const isMember = type === 'User' && from === 'ProjectMembership'
  const isLimited = isRegistry && !principal.isSuperAdmin && !isMember
  const grants = grantsFor(principal, type, interaction)
  const parameters = principal.project.parameters
  const granted = grants === undefined ? [] : visibleTests(place, grants, codes, parameters)
  if (granted === undefined) {
    const hidden = codes.find((code) =>
      grants?.every((grant) => hidesAny(grant, type, [code], parameters)),
    )
    throw hiddenParameter(hidden ?? codes[0])
  }
  return {
    ...place,
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
  { keys }: Pick<Store, 'keys'>,
  principal: Principal,
  type: string,
  { interaction, project, codes }: HiddenScope,
): boolean {
  const grants = grantsFor(principal, type, interaction)
  if (grants === undefined || grants.length === 0) return false
  const parameters = principal.project.parameters
  return (
    visibleTests(placeIn(keys, principal, type, project), grants, codes, parameters) === undefined
  )
}
