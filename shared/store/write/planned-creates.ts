/** Creates that a transaction writes together. */
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { CheckedReference } from '../rows/ports.ts'
import { PlannedRows } from './planned-rows.ts'

/** Creates of one type in one Project, as the same Principal, that are written together. */
export class PlannedCreates {
  readonly rows = new PlannedRows()
  readonly references: CheckedReference[] = []
  /** Their rows are those of these search parameters. */
  own: OwnParameters | undefined

  /** Once they were written, or not, others may take their place. */
  clear(): void {
    this.rows.clear()
    this.references.length = 0
    this.own = undefined
  }
}
