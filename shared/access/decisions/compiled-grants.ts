/**
 * Grants of a policy compiled for both evaluators of criteria: predicates on rows `r` for PostgreSQL, a matcher on the
 * index rows of a content. Chains of a policy run through all of the Project, whatever the Principal sees of it.
 */

import type { Bind } from '../../platform/postgres/statement.ts'
import { REGISTRY_PROJECT } from '../../store/rows/tenants.ts'
import { testOf } from '../../store/search/tests/conditions.ts'
import { filter, oneRowSql, type Scene, sqlOf, type Test } from '../../store/search/tests/test.ts'
import type { Grant } from '../grant.ts'
import { REGISTRY_TYPES } from '../policy.ts'
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
export type TypeScope = Pick<Scene, 'keys' | 'project' | 'type' | 'own' | 'units'>

/** `project` is that of the rows: others than its own do not know the parameters of the Principal's. */
export function createTypeScope(
  keys: Scene['keys'],
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
  readonly tests: readonly Test[]
  /** The criteria in memory; undefined where some take PostgreSQL. */
  readonly matches: RowMatcher | undefined
  /** The criteria that memory can decide. */
  readonly matchesKnown: RowMatcher
  /** The others, if they look at nothing of the resource but its keys and its time; else undefined. */
  readonly left: readonly Test[] | undefined
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
      tests: criteria.map((criterion) => testOf(scene, criterion)),
      matches: left.length === 0 ? matchesKnown : undefined,
      matchesKnown,
      left: isOfRow ? left.map((criterion) => testOf(scene, criterion)) : undefined,
    }
  } catch {
    // Criteria that no statement can test (a chain into the registry) let nothing through.
    const no = () => false
    return { tests: [filter(() => 'false')], matches: no, matchesKnown: no, left: [] }
  }
}

function policyScene(scope: TypeScope): Scene {
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
export function allSql(tests: readonly Test[], bind: Bind): string {
  return andSql(tests, (test) => sqlOf(test, bind, true))
}

/** The same for few rows: what is at the other end of a join is looked up for each. */
export function fewRowsSql(tests: readonly Test[], bind: Bind): string {
  return andSql(tests, (test) => oneRowSql(test, bind))
}

function andSql(tests: readonly Test[], testSql: (test: Test) => string): string {
  if (tests.length === 0) return 'true'
  return `(${tests.map((test) => `(${testSql(test)}) is true`).join(' and ')})`
}
