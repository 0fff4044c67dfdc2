/** The rows of one write, and the answer to it. */

import type { ResourceText } from '../../fhir/resource-text.ts'
import type { EventOrigin, Watch } from '../events/rows.ts'
import type { IndexRows } from '../index/indexes.ts'

import type { Target, UniqueKey } from './side-rows.ts'

/** A version ready to be written. */
export interface Write {
  /** `insert` also brings a deleted resource back; `update` needs `ver - 1` of `after` to be the live version. */
  readonly kind: 'insert' | 'update'
  readonly project: number
  readonly type: number
  readonly id: string
  /** The version that is written. */
  readonly ver: number
  /** `lastUpdated` of the version before: time never runs backwards for a resource. */
  readonly after: Date | undefined
  /** `lastUpdated` of a new resource that comes from elsewhere; undefined: the time of the write. */
  readonly time: Date | undefined
  readonly author: string | undefined
  readonly head: string
  readonly tail: string
  readonly metaAt: number
  readonly metaExtension: string
  /** Undefined: an update leaves them as they are. */
  readonly rows: IndexRows | undefined
  /** False when an update leaves strings and ranges as they are. */
  readonly sideRows: boolean
  readonly unique: readonly UniqueKey[] | undefined
  readonly targets: readonly Target[]
  /** Row ids of patients of its Project: where one holds accounts, nothing is written. */
  readonly heirOf: readonly string[]
  /** Undefined: the row stays as it is. */
  readonly text: ResourceText | undefined
  /** Of a new Project, which gets a number, and of one that begins or ends to search words. */
  readonly tenant: Tenant | undefined
  /** Of a Bot: whether it runs by itself from now on; undefined: at the times it does already. */
  readonly schedule: boolean | undefined
  /** What its Project is indexed by changes with it. */
  readonly reindexes: boolean
  /** Undefined: nobody can wait for it. */
  readonly event: EventOrigin | undefined
  /** Of a Subscription. */
  readonly watch: Watch | undefined
  /** Undefined: no attachments are to be fetched. */
  readonly download: DownloadInput | undefined
}

/** A row of the answer: `lu` of a written row, or `target`: the place of a reference not found, or HOLDER. */
export interface Written {
  readonly n: number
  readonly lu: Date | null
  readonly target: number | null
  /** The statement has put something into the outbox. */
  readonly hasEvents: boolean
  /** The statement has looked, and nobody waits in the Project of the row. */
  readonly isQuiet: boolean
}

export interface DownloadInput {
  readonly projectId: string
  readonly type: string
  readonly id: string
  readonly ver: number
}

export interface Tenant {
  /** Row id. */
  readonly id: string
  /** The version that has switched on the search of words. */
  readonly fullText: number | null
  readonly isChanged: boolean
}
