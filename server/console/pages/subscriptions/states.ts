/** How deliveries go: the one rule of which Subscriptions fail, for Home, the list and the page of one. */
import { useGet } from '../../client/api.ts'
import { isAdmin, type Me } from '../../client/session.ts'

export interface DeliveryState {
  readonly subscription: { readonly reference: string }
  readonly delivered: number
  /** Given up. */
  readonly failed: number
  readonly waiting: number
  /** Waiting deliveries whose last attempt has failed. */
  readonly retrying: number
  /** Given up in a row. */
  readonly failures: number
  readonly paused: string | null
}

/** Returns states by the id of the Subscription; undefined for others than administrators. */
export function useDeliveryStates(me: Me): ReadonlyMap<string, DeliveryState> | undefined {
  const { data } = useGet<{ readonly subscriptions: readonly DeliveryState[] }>(
    `admin/projects/${me.project.id}/subscriptions`,
    { enabled: isAdmin(me), every: 10_000 },
  )
  return (
    data &&
    new Map(
      data.subscriptions.map((state) => [
        state.subscription.reference.replace('Subscription/', ''),
        state,
      ]),
    )
  )
}

export function failsNow({ failures, retrying }: Pick<DeliveryState, 'failures' | 'retrying'>) {
  return failures > 0 || retrying > 0
}
