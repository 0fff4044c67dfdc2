/** Wakes workers for work that PostgreSQL holds. Wakes may be lost: workers also poll. */
import { type Bus, messageKind } from './bus.ts'

/** A queue of WORKER_QUEUES; each worker subscribes to those that it serves. */
type Work = 'change' | 'requests' | 'export' | 'import'

const WAKE = messageKind<null>('wake')
const TOGETHER_MS = 2

/** Wakes all workers that serve this work; each leases up to its capacity. */
export async function wakeWorkers(bus: Bus, work: Work): Promise<void> {
  await bus.publish(WAKE, null, work).catch(() => undefined)
}

/** For outbox inserts: wakes at once, then at most every 2 ms. */
export function createAnnouncer(bus: Bus): () => void {
  let timer: NodeJS.Timeout | undefined
  let isDue = false
  const publish = () => void wakeWorkers(bus, 'change')
  const next = () => {
    timer = undefined
    if (!isDue) return
    isDue = false
    timer = setTimeout(next, TOGETHER_MS)
    publish()
  }
  return () => {
    if (timer !== undefined) {
      isDue = true
      return
    }
    timer = setTimeout(next, TOGETHER_MS)
    publish()
  }
}

/** Calls `wake` for each wake of this work and after possible losses, until closed. */
export async function listenForWakes(
  bus: Bus,
  work: Work,
  wake: () => void,
): Promise<{ close(): void }> {
  const gaps = bus.onGap(wake)
  const listening = await bus.listen(WAKE, wake, work)
  return {
    close() {
      gaps.close()
      listening.close().catch(() => undefined)
    },
  }
}
