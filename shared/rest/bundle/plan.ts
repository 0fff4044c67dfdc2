/** The plan of a bundle entry, made before any entry runs. */

import type { SearchRequest } from '../../query/search-request.ts'
import type { ConditionalReference } from '../conditional-references.ts'
import type { Entry } from './entries.ts'

/** An entry and the searches that decide what it does. */
export interface Plan {
  readonly entry: Entry
  readonly key: string
  readonly condition: SearchRequest | undefined
  readonly references: readonly ConditionalReference[]
  /** The id of the new resource, where an earlier step has chosen it. */
  readonly id?: string
}
