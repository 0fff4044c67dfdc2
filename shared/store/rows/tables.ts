/** The tables with a column `project`: how the rows of a resource and of a Project are found, to remove or to distribute them. */

export interface ProjectTable {
  readonly name: string
  /** The column with the row id of the resource that a row is about. */
  readonly id?: string
  /** The type is part of the row's key. */
  readonly isTyped?: boolean
  /** An index begins with the id; for few ids it beats the primary key, which PostgreSQL would choose. */
  readonly isFoundById?: boolean
  /** The server that has the Project has the rows; queues stay on the coordinator. */
  readonly isDistributed?: boolean
  /** Why the rows stay when their Project is expunged. */
  readonly staysFor?: string
}

const OWN = { id: 'id', isTyped: true, isDistributed: true }
const AGE = { staysFor: 'Rows are removed by their age' }

export const PROJECT_TABLES: readonly ProjectTable[] = [
  { name: 'version', ...OWN },
  { name: 'resource', ...OWN },
  { name: 'unique_key', ...OWN },
  { name: 'idx_string', ...OWN, isFoundById: true },
  { name: 'idx_range', ...OWN, isFoundById: true },
  { name: 'code', isDistributed: true },
  { name: 'resource_text', ...OWN },
  // The job that indexes the parameters of the Project removes those that are gone.
  { name: 'indexed_parameter', isDistributed: true },
  { name: 'outbox', id: 'id', isTyped: true },
  { name: 'active_subscription', id: 'id' },
  { name: 'subscription_state', id: 'subscription' },
  { name: 'schedule', id: 'id' },
  { name: 'delivery' },
  { name: 'tenant', staysFor: 'A number is never given twice' },
  { name: 'job', staysFor: 'A job may be the one that expunges the Project' },
  { name: 'occurrence', staysFor: 'The schedule takes its occurrences along' },
  ...['pending_run', 'bot_run', 'export_job', 'import_job', 'mail'].map((name) => ({
    name,
    ...AGE,
  })),
  { name: 'concept_owner', staysFor: 'removal.ts removes them by FHIR ids' },
]

export const DISTRIBUTED_TABLES = PROJECT_TABLES.filter(({ isDistributed }) => isDistributed)
