/** Versions of a history as a policy lets them be seen; a deletion is judged by what was deleted. */
import type { Interaction } from '../../access/grant.ts'
import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { typeName } from '../../fhir/definitions.ts'
import type { Store } from '../rows/context.ts'
import { toVersion, type VersionRow } from '../rows/rows.ts'
import type { Version } from '../rows/version.ts'
import { hiddenBy, lastContents, rulingsOfContents } from '../rulings/rulings.ts'
import { without } from './redact.ts'

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

/** Returns the rows that the Principal may see. One more statement for deletions, one for each type that takes PostgreSQL. */
export async function seenVersions<Row extends VersionRow>(
  store: Store,
  principal: Principal,
  rows: readonly Row[],
  idFor: (row: Row) => string,
): Promise<readonly SeenVersion<Row>[]> {
  const judged = rows.filter(({ type }) => !isWholeHistory(principal, typeName(type)))
  const deletions = judged.filter(({ content }) => content === null)
  const before = await lastContents(store, deletions)
  const last = new Map<VersionRow, VersionRow | undefined>(
    deletions.map((row, i) => [row, before[i]]),
  )
  const contents = judged.flatMap((row) => (row.content === null ? (last.get(row) ?? []) : row))
  const answers = await rulingsOfContents(store, principal, ASKED, contents)
  const found = new Map(contents.map((content, i) => [content, answers[i]]))
  return rows.flatMap((row) => {
    const version = toVersion(row, row.content === null ? idFor(row) : undefined)
    if (!judged.includes(row)) return [{ row, version }]
    const content = row.content === null ? last.get(row) : row
    const rulings = ASKED.map((item) => content && found.get(content)?.[item])
    if (rulings.some((ruling) => ruling === undefined)) return []
    return [{ row, version: without(version, rulings.flatMap(hiddenBy)) }]
  })
}
