/** Types that connect the parts of the store. */
import type { RunLease } from '../../access/principal.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Reference } from '../../fhir/resource.ts'
import type { EventOrigin } from './event-rows.ts'
import type { VersionRow } from './rows.ts'
import type { Target } from './side-rows.ts'
import type { PartRow, Write, Written } from './write-rows.ts'

export interface Deleted extends VersionRow {
  readonly n: number
  /** True for the new deletion; otherwise the row before it. */
  readonly deleted: boolean
  readonly gone: boolean
  /** ProjectMembership whose profile was just deleted. */
  readonly membership: string | null
  readonly hasEvents: boolean
}

export interface DeletionWrite {
  readonly project: number
  readonly type: number
  readonly id: string
  /** Any version when undefined. */
  readonly vers: readonly number[] | undefined
  readonly metaPrefix: string
  readonly author: string | undefined
  /** Absent when no Subscription can wait for it. */
  readonly event: EventOrigin | undefined
  /** Key of the ProjectMemberships with this profile, for profile types. */
  readonly profileKey: bigint | undefined
  readonly parts: readonly Omit<PartRow, 'row'>[]
  /** Lease that must be held; otherwise nothing is deleted. */
  readonly lease: RunLease | undefined
}

/** Returns the rows of one write; none when an update lost its race. */
export type Submit = (write: Write) => Promise<readonly Written[]>

export type KeyedMutex = <T>(key: bigint, work: () => Promise<T>) => Promise<T>

export interface CheckedReference extends Target {
  readonly path: string
}

export interface WritePlace {
  readonly kind: Write['kind']
  /** For registry types the number is the system project's, the id is not. */
  readonly project: number
  readonly projectId: string
  readonly id: string
  readonly ver: number
  readonly after: Date | undefined
  /** Accounts for a new resource that names none. */
  readonly accounts?: readonly Reference[] | undefined
  /** Row ids of patients: the write is held if one has accounts. */
  readonly patientIds?: readonly string[] | undefined
  readonly own: OwnParameters | undefined
}
