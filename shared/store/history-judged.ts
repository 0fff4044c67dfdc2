/**
 * Versions of a history as a policy lets them be seen. An older version has no row, so only its keys can
 * decide; a deletion is judged by what was deleted.
 */
import { grantsFor, type Interaction } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { typeName } from '../fhir/definitions.ts'
import type { Store } from './context.ts'
import { hiddenBy, lastContents, needsSql, rulingOfRow } from './judge.ts'
import { askLive, type Ruling } from './judge-rows.ts'
import type { Version } from './repository.ts'
import { toVersion, type VersionRow } from './rows.ts'
import { without } from './shown.ts'

const ASKED: readonly Interaction[] = ['read', 'history']

export interface SeenVersion<Row> {
  readonly row: Row
  readonly version: Version
}

/** True when no policy tells versions of the type apart or hides part of them. */
export function isWholeHistory(principal: Principal, type: string): boolean {
  return ASKED.every((item) => {
    const [first] = grantsFor(principal, type, item) ?? []
    return first === undefined || first.criteria.length + first.hidden.length === 0
  })
}

/**
 * Those that the Principal may see. One more statement for deletions, one for each type whose criteria
 * take PostgreSQL.
 */
export async function seenVersions<Row extends VersionRow>(
  store: Store,
  principal: Principal,
  rows: readonly Row[],
  idFor: (row: Row) => string,
): Promise<readonly SeenVersion<Row>[]> {
  const judged = rows.filter(({ type }) => !isWholeHistory(principal, typeName(type)))
  const deletions = judged.filter(({ content }) => content === null)
  const before = await lastContents(store, deletions)
  const last = new Map(deletions.map((row, i) => [row, before[i]] as const))
  const live = await liveRulings(store, principal, judged)
  return rows.flatMap((row) => {
    const version = toVersion(row, row.content === null ? idFor(row) : undefined)
    if (!judged.includes(row)) return [{ row, version }]
    const rulings =
      live.get(row) ?? ASKED.map((item) => rulingOf(store, principal, item, row, last.get(row)))
    if (rulings.some((ruling) => ruling === undefined)) return []
    return [{ row, version: without(version, rulings.flatMap(hiddenBy)) }]
  })
}

function rulingOf(
  store: Store,
  principal: Principal,
  interaction: Interaction,
  row: VersionRow,
  last: VersionRow | undefined,
): Ruling {
  const judged = row.content === null ? last : row
  return judged && rulingOfRow(store, principal, interaction, judged)
}

/** Of those rows that are the newest versions of types for which keys do not decide. */
async function liveRulings(
  store: Store,
  principal: Principal,
  rows: readonly VersionRow[],
): Promise<ReadonlyMap<VersionRow, readonly Ruling[]>> {
  const found = new Map<VersionRow, readonly Ruling[]>()
  const groups = Map.groupBy(rows, ({ project, type }) => `${project} ${type}`)
  for (const group of groups.values()) {
    const [first] = group
    const type = typeName(first?.type ?? 0)
    if (!ASKED.some((item) => needsSql(store, principal, type, item))) continue
    const ids = group.map(({ id }) => id)
    const live = await askLive(store, principal, type, first?.project ?? 0, ids, ASKED)
    group.forEach((row, i) => {
      const answer = live[i]
      if (answer?.ver !== row.ver) return
      const rulings = ASKED.map((item) => answer.rulings[item])
      found.set(row, rulings)
    })
  }
  return found
}
