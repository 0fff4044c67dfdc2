/** Deliveries that were received wait here for the next take, which settles them in its own transaction. */
import type { Receipt } from '../../shared/subscriptions/state.ts'

export interface Receipts {
  /** Resolves when PostgreSQL knows. */
  add(receipt: Receipt): Promise<void>
  /** Hands all that wait to `settle`. Where that fails they wait on, or fail too when it `isLast`. */
  settle<T>(settle: (receipts: readonly Receipt[]) => Promise<T>, isLast: boolean): Promise<T>
}

interface Waiting {
  readonly receipt: Receipt
  readonly resolve: () => void
  readonly reject: (error: unknown) => void
}

export function createReceipts(): Receipts {
  let queue: Waiting[] = []
  return {
    add: (receipt) =>
      new Promise((resolve, reject) => {
        queue.push({ receipt, resolve, reject })
      }),
    async settle(settle, isLast) {
      const batch = queue
      queue = []
      try {
        const result = await settle(batch.map(({ receipt }) => receipt))
        for (const { resolve } of batch) resolve()
        return result
      } catch (error) {
        if (!isLast) queue = [...batch, ...queue]
        else for (const { reject } of batch) reject(error)
        throw error
      }
    },
  }
}
