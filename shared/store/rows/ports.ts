/** The parts that a Store is put together from, as types. */
import type { RunLease } from '../../access/principal.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Reference } from '../../fhir/resource.ts'
import type { EventOrigin } from './event-rows.ts'
import type { VersionRow } from './rows.ts'
import type { Target } from './side-rows.ts'
import type { PartRow, Write, Written } from './write-rows.ts'

/** A row of the delete statement's answer. */
export interface Deleted extends VersionRow {
  /** Which deletion it belongs to, from 1. */
  readonly n: number
  /** This row is the deletion just written; otherwise it is what was there before. */
  readonly deleted: boolean
  /** The version is itself a deletion. */
  readonly gone: boolean
  /** A ProjectMembership whose profile was just deleted. */
  readonly membership: string | null
  /** The statement has put something into the outbox. */
  readonly hasEvents: boolean
}

export interface DeletionWrite {
  readonly project: number
  readonly type: number
  readonly id: string
  /** The live versions that may be deleted; undefined: any. */
  readonly vers: readonly number[] | undefined
  readonly metaPrefix: string
  readonly author: string | undefined
  /** Undefined: nobody can wait for it. */
  readonly event: EventOrigin | undefined
  /** Key of the ProjectMemberships of which it is the profile, for what may be one. */
  readonly profileKey: bigint | undefined
  /** Parts of features that have rows of its type. */
  readonly parts: readonly Omit<PartRow, 'row'>[]
  /** The run of a bot that has to be held still, or nothing is deleted. */
  readonly lease: RunLease | undefined
}

/** The rows of the answer that belong to one write: none when an update lost its race. */
export type Submit = (write: Write) => Promise<readonly Written[]>

/** Runs work with equal keys one after the other. */
export type KeyedMutex = <T>(key: bigint, work: () => Promise<T>) => Promise<T>

export interface CheckedReference extends Target {
  readonly path: string
}

/** Which version of which row is written. */
export interface WritePlace {
  readonly kind: Write['kind']
  /** Number and id of the Project: for registry types the number is the system project's. */
  readonly project: number
  readonly projectId: string
  readonly id: string
  readonly ver: number
  readonly after: Date | undefined
  /** The accounts of a new resource that names none. */
  readonly accounts?: readonly Reference[] | undefined
  /** Row ids of patients: one that holds accounts hinders the write. */
  readonly patientIds?: readonly string[] | undefined
  /** Search parameters of that Project's own. */
  readonly own: OwnParameters | undefined
}
