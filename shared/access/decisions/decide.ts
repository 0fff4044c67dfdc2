/**
 * Finds the grant that governs a resource: by the index rows of its content, or otherwise in PostgreSQL, with the
 * statement that reads the row or in the transaction of the write. A version without a row is decided by its content,
 * with references in their current state.
 */

import { memoFor } from '../../core/cache.ts'
import { storedParameters, typeName } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Meta, Resource } from '../../fhir/resource.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import { arrayLiteral } from '../../postgres/statement.ts'
import { isCondition, listLeaves } from '../../search/language/search-request.ts'
import { getIndexPlan, type IndexPlan, type ParameterSubset } from '../../store/index/index-plan.ts'
import {
  indexRows,
  isLegalId,
  readRow,
  rowScope,
  type StoreContext,
} from '../../store/rows/context.ts'
import { parseVersion, toVersion, type VersionRow, versionColumns } from '../../store/rows/rows.ts'
import { readMembers } from '../fields/fields.ts'
import { type Grant, INTERACTIONS, type Interaction, type Rules } from '../grant.ts'
import { grantsFor, REGISTRY_TYPES } from '../policy.ts'
import { type Principal, SYSTEM_PROJECT_NUMBER, systemPrincipal } from '../principal.ts'
import { SYSTEM_PROJECT } from '../project-context.ts'
import {
  type AccessDecision,
  type Decisions,
  decideDerivedRows,
  decideLiveRows,
  type IndexedContent,
  type Question,
  readWithDecisions,
} from './decide-in-sql.ts'
import { allSql, compileGrant, createTypeScope, type TypeScope } from './grant-predicates.ts'
import { type IndexedRow, toIndexedRow } from './match-row.ts'

export interface DecidedRow {
  readonly row: VersionRow
  readonly decisions: Decisions
}

export function hiddenBy(decision: AccessDecision): readonly string[] {
  return decision === undefined || decision === 'all' ? [] : decision.hidden
}

/** True when all resources of the type are treated alike. */
export function isPlain(principal: Principal, type: string, interaction: Interaction): boolean {
  const grants = grantsFor(principal, type, interaction)
  return grants === undefined || grants.length === 0 || grants[0]?.criteria.length === 0
}

export function needsSql(
  { keys }: Pick<StoreContext, 'keys'>,
  principal: Principal,
  type: string,
  interaction: Interaction,
): boolean {
  const grants = grantsFor(principal, type, interaction)
  if (grants === undefined) return false
  const scope = principalTypeScope(keys, principal, type)
  return grants.some((grant) => compileGrant(scope, grant).matches === undefined)
}

function principalTypeScope(
  keys: StoreContext['keys'],
  principal: Principal,
  type: string,
): TypeScope {
  const project = REGISTRY_TYPES.has(type) ? SYSTEM_PROJECT_NUMBER : principal.project.number
  return createTypeScope(keys, principal, type, project)
}

interface Content {
  readonly type: string
  readonly interaction: Interaction
  readonly project: number
  readonly indexed: () => IndexedRow
}

/** Decides in memory. A grant that the content leaves open hides its paths and lets nothing through. */
export function decideByContent(
  { keys }: Pick<StoreContext, 'keys'>,
  principal: Principal,
  { type, interaction, project, indexed }: Content,
): AccessDecision {
  const grants = grantsFor(principal, type, interaction)
  if (grants === undefined) return 'all'
  const scope = createTypeScope(keys, principal, type, project)
  const undecided: string[] = []
  for (const grant of grants) {
    if (grant.criteria.length > 0) {
      const { matches } = compileGrant(scope, grant)
      if (matches === undefined) undecided.push(...grant.hidden)
      if (!matches?.(indexed())) continue
    }
    return undecided.length === 0 ? grant : { ...grant, hidden: [...grant.hidden, ...undecided] }
  }
  return undefined
}

export function decideRow(
  store: StoreContext,
  principal: Principal,
  interaction: Interaction,
  row: VersionRow,
): AccessDecision {
  return decideByContent(store, principal, {
    type: typeName(row.type),
    interaction,
    project: row.project,
    indexed: () => indexedRow(store, principal, row),
  })
}

/** Derives only the parameters in the criteria of the Principal. */
function indexedRow(store: StoreContext, principal: Principal, row: VersionRow): IndexedRow {
  const known = indexed.get(row)
  if (known !== undefined && known.rules === principal.rules) return known.made
  const type = typeName(row.type)
  const { own } = createTypeScope(store.keys, principal, type, row.project)
  const only = principal.rules && decisionParameters(principal, principal.rules, type)
  const resource = readPart(row, getIndexPlan(type, own, only))
  const rows = indexRows(store, row.project, resource, { parameters: own, only })
  const made = toIndexedRow(row.id, rows)
  indexed.set(row, { rules: principal.rules, made })
  return made
}

const indexed = new WeakMap<
  VersionRow,
  { readonly rules: Rules | undefined; readonly made: IndexedRow }
>()

function decisionParameters(principal: Principal, rules: Rules, type: string): ParameterSubset {
  return parameters(rules, type, () => {
    const grants = new Set(INTERACTIONS.flatMap((item) => grantsFor(principal, type, item) ?? []))
    const leaves = [...grants].flatMap(({ criteria }) => criteria.flatMap(listLeaves))
    const codes = leaves.flatMap((leaf) => {
      if (!isCondition(leaf)) return leaf.kind === 'compartment' ? ['_compartment'] : []
      return leaf.code === '_compartment' ? [leaf.code] : storedParameters(type, leaf.code)
    })
    const sorted = [...new Set(codes)].sort()
    return { stamp: sorted.join(), codes: new Set(sorted) }
  })
}

const parameters = memoFor<Rules, ParameterSubset>()

/** With `url`, the version makes the canonical of a definition. */
const HEAD: ReadonlySet<string> = new Set(['resourceType', 'id', 'meta', 'version'])

function readPart(row: VersionRow, { roots, whole }: IndexPlan): Resource {
  if (whole.length > 0) return parseVersion(toVersion(row))
  const part = readMembers(
    row.content ?? '',
    (name) => HEAD.has(name) || roots.has(name),
  ) as Resource
  return { ...part, meta: { ...part.meta, ...(JSON.parse(`{${row.meta_ext}}`) as Meta) } }
}

/**
 * One statement; one more for a deletion, and for callers who read every Project. Undefined for unknown or invisible
 * ids.
 */
export async function readDecided(
  store: StoreContext,
  principal: Principal,
  type: string,
  { id, interactions }: { readonly id: string; readonly interactions: readonly Interaction[] },
): Promise<DecidedRow | undefined> {
  if (!isLegalId(id)) return undefined
  // Batching reads by id saves more than deciding here would.
  const asked = interactions.filter((item) => needsSql(store, principal, type, item))
  const { project, metaPrefix, everywhere } = rowScope(principal, type)
  if (asked.length > 0 && !everywhere) {
    const question = { principal, type, project, asked }
    const found = await readWithDecisions(store, question, { id, metaPrefix })
    return found && complete(store, principal, interactions, found)
  }
  const row = await readRow(store, principal, type, id)
  if (row === undefined) return undefined
  const question = { principal, type, project: row.project, asked }
  const [decisions = {}] = asked.length > 0 ? await decideLiveRows(store, question, [row.id]) : []
  return complete(store, principal, interactions, { row, decisions })
}

/** Decides on a row in memory; undefined when PostgreSQL has to decide. */
export async function decideKnownRow(
  store: StoreContext,
  principal: Principal,
  row: VersionRow,
  interactions: readonly Interaction[],
): Promise<DecidedRow | undefined> {
  const type = typeName(row.type)
  if (interactions.some((item) => needsSql(store, principal, type, item))) return undefined
  return complete(store, principal, interactions, { row, decisions: {} })
}

async function complete(
  store: StoreContext,
  principal: Principal,
  interactions: readonly Interaction[],
  { row, decisions: known }: DecidedRow,
): Promise<DecidedRow> {
  const type = typeName(row.type)
  const isAlike = interactions.every((item) => isPlain(principal, type, item))
  const [deleted] =
    row.content !== null || isAlike
      ? []
      : await decideVersions(store, principal, interactions, [row])
  if (deleted !== undefined) return { row, decisions: deleted }
  const decisions: Partial<Record<Interaction, AccessDecision>> = {}
  for (const item of interactions) {
    if (item in known) decisions[item] = known[item]
    else if (row.content !== null) decisions[item] = decideRow(store, principal, item, row)
    else decisions[item] = decideUnseen(principal, type, item)
  }
  return { row, decisions }
}

function decideUnseen(
  principal: Principal,
  type: string,
  interaction: Interaction,
): AccessDecision {
  const grants = grantsFor(principal, type, interaction)
  return grants === undefined ? 'all' : grants.find(({ criteria }) => criteria.length === 0)
}

/** Like `decideContents`; a deletion is decided by the version before it (one more statement), if any. */
export async function decideVersions(
  store: StoreContext,
  principal: Principal,
  interactions: readonly Interaction[],
  rows: readonly VersionRow[],
): Promise<readonly (Decisions | undefined)[]> {
  const deletions = rows.filter(({ content }) => content === null)
  const before = await versionsBeforeDeletion(store, deletions)
  const last = new Map(deletions.map((row, i) => [row, before[i]]))
  const contents = rows.map((row) => (row.content === null ? last.get(row) : row))
  const known = contents.filter((row) => row !== undefined)
  const decided = await decideContents(store, principal, interactions, known)
  const found = new Map(known.map((row, i) => [row, decided[i]]))
  return contents.map((row) => row && found.get(row))
}

/** One statement per type that needs PostgreSQL; answers in the order of the versions. */
export function decideContents(
  store: StoreContext,
  principal: Principal,
  interactions: readonly Interaction[],
  rows: readonly VersionRow[],
): Promise<readonly Decisions[]> {
  return decideGroups(store, principal, { interactions, rows }, (question, group) => {
    const contents = group.map((row) => indexContent(store, principal, row))
    return decideDerivedRows(store, question, contents)
  })
}

/** Like `decideContents`, for live rows. */
export function decideRows(
  store: StoreContext,
  principal: Principal,
  interactions: readonly Interaction[],
  rows: readonly VersionRow[],
): Promise<readonly Decisions[]> {
  return decideGroups(store, principal, { interactions, rows }, (question, group) => {
    const ids = group.map(({ id }) => id)
    return decideLiveRows(store, question, ids)
  })
}

interface Asked {
  readonly interactions: readonly Interaction[]
  readonly rows: readonly VersionRow[]
}

async function decideGroups(
  store: StoreContext,
  principal: Principal,
  { interactions, rows }: Asked,
  inSql: (question: Question, group: readonly VersionRow[]) => Promise<readonly Decisions[]>,
): Promise<readonly Decisions[]> {
  const found = new Map<VersionRow, Decisions>()
  for (const group of Map.groupBy(rows, ({ project, type }) => `${project} ${type}`).values()) {
    const { project = 0, type: number = 0 } = group[0] ?? {}
    const type = typeName(number)
    const asked = interactions.filter((item) => needsSql(store, principal, type, item))
    const decided = asked.length > 0 ? await inSql({ principal, type, project, asked }, group) : []
    for (const [i, row] of group.entries()) {
      const others = interactions
        .filter((item) => !asked.includes(item))
        .map((item) => [item, decideRow(store, principal, item, row)] as const)
      found.set(row, { ...decided[i], ...Object.fromEntries(others) })
    }
  }
  return rows.map((row) => found.get(row) ?? {})
}

function indexContent(store: StoreContext, principal: Principal, row: VersionRow): IndexedContent {
  const resource = parseVersion(toVersion(row))
  const { own } = createTypeScope(store.keys, principal, resource.resourceType, row.project)
  const rows = indexRows(store, row.project, resource, { parameters: own })
  return { row, rows, indexed: toIndexedRow(row.id, rows) }
}

interface ProjectRows {
  readonly project: number
  readonly parameters: OwnParameters | undefined
  readonly rows: readonly VersionRow[]
}

/** Selects the versions of a Project whose content meets the criteria of a grant. */
export async function filterByCriteria(
  store: StoreContext,
  grants: readonly Grant[],
  { project, parameters, rows }: ProjectRows,
): Promise<readonly VersionRow[]> {
  const context = { ...SYSTEM_PROJECT, number: project, parameters }
  const policy: Principal = { ...systemPrincipal(context), rules: { grants } }
  const decided = await decideContents(store, policy, ['read'], rows)
  return rows.filter((_, i) => decided[i]?.read !== undefined)
}

/** Returns the version before each deletion, in their order; undefined if there is none. One statement. */
export async function versionsBeforeDeletion(
  { connection }: StoreContext,
  deletions: readonly VersionRow[],
): Promise<readonly (VersionRow | undefined)[]> {
  if (deletions.length === 0) return []
  const rows = await connection.query<VersionRow & { n: number }>({
    name: 'last-contents',
    perProject: deletions.map(({ project }) => project),
    text: `select x.n::int, ${versionColumns('v')}
      from unnest($1::int[], $2::smallint[], $3::uuid[], $4::int[]) with ordinality
        as x(project, type, id, ver, n)
      join version v on ${dialect.projectOfList('v.project', 4)} and v.type = x.type and v.id = x.id
        and v.ver = x.ver - 1
      where v.content is not null`,
    values: [
      arrayLiteral(deletions.map(({ project }) => project)),
      arrayLiteral(deletions.map(({ type }) => type)),
      arrayLiteral(deletions.map(({ id }) => id)),
      arrayLiteral(deletions.map(({ ver }) => ver)),
    ],
  })
  const found = new Map(rows.map((row) => [row.n, row]))
  return deletions.map((_, i) => found.get(i + 1))
}

export function criteriaSql(
  { keys }: Pick<StoreContext, 'keys'>,
  principal: Principal,
  type: string,
  grant: Grant,
): string {
  const { tests: predicates } = compileGrant(principalTypeScope(keys, principal, type), grant)
  return allSql(predicates, (_value, sqlType) => `?::${sqlType}`).replace(/\s+/g, ' ')
}
