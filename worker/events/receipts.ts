/**
 * Deliveries that were received are settled together: what arrives while a statement is under way goes
 * into the next one. Each alone would wait for the count of its Subscription that the others hold.
 */
import type { Connection } from '../../shared/database.ts'
import type { Delivery } from '../../shared/store/deliveries.ts'
import { deliveriesReceived } from '../../shared/store/subscription-state.ts'

/** Resolves when PostgreSQL knows. */
export type Receive = (delivery: Delivery) => Promise<void>

interface Waiting {
  readonly delivery: Delivery
  readonly resolve: () => void
  readonly reject: (error: unknown) => void
}

export function createReceipts(connection: Connection): Receive {
  let queue: Waiting[] = []
  let isRunning = false

  async function drain(): Promise<void> {
    while (queue.length > 0) {
      const batch = queue
      queue = []
      try {
        const deliveries = batch.map(({ delivery }) => delivery)
        await deliveriesReceived(connection, deliveries)
        for (const { resolve } of batch) resolve()
      } catch (error) {
        for (const { reject } of batch) reject(error)
      }
    }
    isRunning = false
  }

  return (delivery) =>
    new Promise((resolve, reject) => {
      queue.push({ delivery, resolve, reject })
      if (isRunning) return
      isRunning = true
      void drain()
    })
}
