/**
 * Which run a write belongs to. A row of PostgreSQL owns a run that may be repeated, and each worker that takes the
 * row counts up; the writing statements refuse those of a worker that has lost it.
 */
export interface RunTaking {
  /** The table of the row: `pending_run`, `occurrence` or `delivery`. */
  readonly owner: 'r' | 'o' | 'd'
  readonly run: string
  /** The count of the row when it was taken. */
  readonly taking: number
}
