/**
 * `_include` and `_revinclude`: one statement a step, for all types and both directions at once.
 * https://hl7.org/fhir/R4/search.html#revinclude
 */
import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { Resource } from '../../fhir/resource.ts'
import type { Include } from '../../query/search-request.ts'
import { keysLiteral } from '../index/keys.ts'
import { CANONICAL_KEY } from '../index/type-constants.ts'
import { showAll } from '../read/redact.ts'
import { normalId, type Store } from '../rows/context.ts'
import { extendedText } from '../rows/rows.ts'
import type { Version } from '../rows/version.ts'
import { type Sought, seekIncludes } from './include-seek.ts'
import type { SortedRow } from './order/position.ts'
import { pageStatement } from './plan/compile.ts'
import { isShared } from './plan/prepare.ts'
import type { Query } from './plan/query.ts'
import { factsOf } from './plan/total.ts'
import { wayOf } from './plan/ways.ts'
import { holdsSql, type Scene } from './tests/row-test.ts'
import type { Test } from './tests/test.ts'
import { isHidden, visibleRows } from './tests/visible-rows.ts'

export interface Followed {
  /** Each once, and none of the matches. */
  readonly included: readonly Version[]
  /** A limit has left something out. */
  readonly isCut: boolean
}

const MAX_STEPS = 5
const MAX_INCLUDED = 1000
/** The limit of one step: `_revinclude=*` asks for every reference parameter of every type. */
const MAX_KEYS = 10_000

interface Includes {
  readonly projects: readonly number[]
  readonly includes: readonly Include[]
  readonly matches: readonly Version[]
}

export async function followIncludes(
  store: Store,
  principal: Principal,
  { projects, includes, matches }: Includes,
): Promise<Followed> {
  const own = principal.project.parameters
  const seen = new Set(matches.map(nameOf))
  const included: Version[] = []
  let newest = matches
  let wanted = includes
  for (let step = 1; newest.length > 0 && wanted.length > 0; step++) {
    const sought = seekIncludes(wanted, newest.map(linking), MAX_KEYS, own)
    const limit = MAX_INCLUDED + seen.size + 1
    const queries = projects.flatMap((project) =>
      queriesOf(store, principal, project, { codes: sought, seen, limit }),
    )
    if (queries.length === 0) break
    if (step > MAX_STEPS) return { included, isCut: true }
    const parts = queries.map((query) => wayOf(query, factsOf(store.statistics, query)))
    const rows = await store.connection.query<SortedRow>(pageStatement(parts))
    // A resource that is reached both ways is shown as it may be read.
    const interactionOf = (type: string) => (sought.targets.has(type) ? 'read' : 'search')
    const shown = await showAll(store, principal, interactionOf, rows)
    // Several queries may lead to the same.
    const named = new Map(shown.map((version) => [nameOf(version), version]))
    const found = [...named].filter(([name]) => !seen.has(name)).map(([, version]) => version)
    for (const name of named.keys()) seen.add(name)
    const room = MAX_INCLUDED - included.length
    included.push(...found.slice(0, room))
    if (found.length > room || sought.isCut) return { included, isCut: true }
    newest = found
    wanted = includes.filter(({ iterate }) => iterate)
  }
  return { included, isCut: false }
}

function nameOf({ type, id }: { readonly type: string; readonly id: string }): string {
  return `${type}/${normalId(id)}`
}

interface IncludeStep {
  readonly codes: Sought
  readonly seen: ReadonlySet<string>
  readonly limit: number
}

/** One query a type; what refers to the page needs `search`, what the page refers to `read`. */
function queriesOf(
  store: Store,
  principal: Principal,
  project: number,
  { codes: { targets, holders }, seen, limit }: IncludeStep,
): Query[] {
  const queries: Query[] = []
  const add = (scene: Scene, test: Test) => {
    const order = { column: 'lu', descending: true, byType: true, terms: [] } as const
    queries.push({
      project: scene.project,
      typeNumbers: [typeNumber(scene.type)],
      tests: [...scene.visible, test],
      order,
      after: undefined,
      limit,
      offset: 0,
    })
  }
  for (const [type, { ids, urls }] of targets) {
    const unseen = [...ids].map(normalId).filter((id) => !seen.has(`${type}/${id}`))
    if (!isShared(principal, project, type)) continue
    if (unseen.length > 0) {
      const scene = visibleRows(store, principal, type, { interaction: 'read', project })
      if (scene !== undefined) add(scene, idsTest(scene, unseen))
    }
    // Finding a resource by its url reveals the url.
    if (
      urls.size > 0 &&
      !isHidden(store, principal, type, { interaction: 'read', project, codes: ['url'] })
    ) {
      const scene = visibleRows(store, principal, type, {
        interaction: 'read',
        project,
        units: [],
        codes: ['url'],
      })
      if (scene !== undefined) add(scene, urlsTest(scene, urls))
    }
  }
  for (const [type, parameters] of holders) {
    if (!isShared(principal, project, type)) continue
    for (const [scene, codes] of holderScenes(store, principal, { project, type, parameters })) {
      const any = codes.flatMap((code) => {
        const p = scene.keys.param(scene.project, type, code)
        const texts = parameters.get(code) ?? []
        return [...texts].map((text) => p ^ scene.keys.target(scene.project, text))
      })
      add(scene, {
        kind: 'join',
        keys: (bind) => bind(keysLiteral(any), 'bigint[]'),
        check: holdsSql,
        isSteady: true,
      })
    }
  }
  return queries
}

interface HolderType {
  readonly project: number
  readonly type: string
  readonly parameters: ReadonlyMap<string, unknown>
}

/** One for all parameters, or one for each where a policy hides elements; hidden ones have none. */
function holderScenes(
  store: Store,
  principal: Principal,
  { project, type, parameters }: HolderType,
): readonly (readonly [Scene, readonly string[]])[] {
  const codes = [...parameters.keys()]
  const isOpen = grantsFor(principal, type, 'search')?.every(({ hidden }) => hidden.length === 0)
  const groups = isOpen === false ? codes.map((code) => [code]) : [codes]
  return groups.flatMap((group) => {
    if (isHidden(store, principal, type, { interaction: 'search', project, codes: group }))
      return []
    const scene = visibleRows(store, principal, type, {
      interaction: 'search',
      project,
      units: [],
      codes: group,
    })
    return scene === undefined ? [] : [[scene, group] as const]
  })
}

function idsTest({ keys, type }: Scene, ids: readonly string[]): Test {
  const rowIds = ids.map((id) => keys.rowId(type, id))
  return { kind: 'narrow', sql: (bind) => `r.id = any(${bind(rowIds, 'uuid[]')})`, reach: 'row' }
}

function urlsTest({ keys, project, type }: Scene, urls: ReadonlySet<string>): Test {
  const p = keys.param(project, type, CANONICAL_KEY)
  return { kind: 'keys', any: [...urls].map((url) => p ^ keys.target(project, url)) }
}

/** The resource as far as it links to others: its numbers do not keep their digits, which takes a second reading. */
function linking(version: Version): Resource {
  // Our own text, checked when it was written.
  return JSON.parse(extendedText(version)) as Resource
}
