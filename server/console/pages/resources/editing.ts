/** A record in the making, as form and JSON share it. */
import type { Resource } from '@medplum/fhirtypes'
import type { Draft } from '../../drafts.ts'

export interface Editing {
  readonly draft: Draft<Resource>
  /** Absent where the person may read alone. */
  readonly save: ((record: Resource) => void) | undefined
  readonly isBusy: boolean
  readonly error: unknown
}
