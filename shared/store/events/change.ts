/** A committed change, as Subscriptions are judged by it. */

import type { Cause } from '../../access/principal.ts'
import type { Change } from '../../access/subscription.ts'
import type { VersionRow } from '../rows/rows.ts'

/** The marks of a change that is sent again. */
export interface Resend {
  /** The Subscription that it is for alone, by its row id. */
  readonly only?: string | undefined
  /** Each Subscription logs its decision. */
  readonly verbose?: boolean
}

export type StoredCause = Partial<Cause> & { readonly resend?: Resend }

/** A committed change. */
export interface ChangeEvent {
  /** Number of the Project whose Subscriptions it concerns; rows of the registry are filed elsewhere. */
  readonly project: number
  readonly seq: string
  readonly change: Change
  readonly type: string
  readonly id: string
  /** The version that the change has made. */
  readonly ver: number
  /** When. */
  readonly at: Date
  /** The version that it is about: the new one, for a deletion the last one. */
  readonly subject: VersionRow
  /** The version before; undefined for a create. */
  readonly previous: VersionRow | undefined
  readonly cause: StoredCause
  /** The cause as it is stored. */
  readonly origin: string
}
