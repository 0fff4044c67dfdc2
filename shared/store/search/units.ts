/** Which UCUM units a project's data has, so that a quantity is found in whatever unit it is. */
import type { Condition } from '../../fhir/search.ts'
import { UCUM } from '../../fhir/ucum.ts'
import type { Store } from '../context.ts'

/** One small statement, and only for a search that names a unit of UCUM. */
export async function unitsOf(
  { connection, keys }: Store,
  project: number,
  conditions: readonly Condition[],
): Promise<readonly string[]> {
  const isAsked = conditions.some(({ type, values }) => {
    const hasUnit = type === 'quantity' || type === 'composite'
    return hasUnit && values.some((value) => value.includes(`|${UCUM}|`))
  })
  if (!isAsked) return []
  const rows = await connection.query<{ code: string }>({
    text: 'select code from code where project = $1 and p = $2',
    values: [project, keys.units(project)],
  })
  return rows.map(({ code }) => code)
}
