/** SQL that the statements share which list the compartments of an export. */
import { typeNumber } from '../../../fhir/definitions.ts'
import type { Bind } from '../../../store/rows/side-rows.ts'
import { allSql } from '../../../store/search/tests/grant-tests.ts'
import { rulingSql, type Selection } from '../rows/select.ts'

export const PATIENT = typeNumber('Patient')

/** A statement that writes down what `rows` gives, of which it reads `patient`, `place`, `ruling` and `id`. */
export function compartmentsSql(job: string, rows: string): string {
  return `insert into export_compartment (job, patient, place, ruling, ids)
    select ${job}, patient, place, ruling, array_agg(distinct id order by id)
    from (${rows}) r group by patient, place, ruling`
}

/** The row is the Patient whose compartment it is. */
export function isOwnSql(table: string, patient: string): string {
  return `${table}.type = ${PATIENT} and ${table}.id = ${patient}`
}

/** Number of the type that is at the place of a compartment. */
export function typeAtPlace(table: string): string {
  return `(case ${table}.place when 0 then ${PATIENT} else ${table}.place end)`
}

/** Selects for rows `r` of several types which grant governs, and whether they are exported. */
export function rowTestsSql(
  selections: readonly Selection[],
  bind: Bind,
): readonly [ruling: string, tests: string] {
  const rulings: string[] = []
  const tests: string[] = []
  for (const selection of selections) {
    const { scene, filter, ruled } = selection
    const when = `when ${typeNumber(scene.type)} then`
    if (ruled !== undefined) rulings.push(`${when} ${rulingSql(selection, bind)}`)
    const own = filter === undefined ? scene.visible : [...scene.visible, filter.test]
    if (own.length > 0) tests.push(`${when} ${allSql(own, bind)}`)
  }
  return [
    rulings.length === 0 ? 'null::int' : `(case r.type ${rulings.join(' ')} end)`,
    tests.length === 0 ? 'true' : `(case r.type ${tests.join(' ')} else true end)`,
  ]
}
