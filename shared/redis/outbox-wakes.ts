/** Wakes workers after outbox inserts. Wakes may be lost: workers also poll. */
import { type Bus, messageKind } from './bus.ts'

const WAKE = messageKind<null>('outbox')
const TOGETHER_MS = 2

/** Wakes at once, then at most every 2 ms. */
export function createAnnouncer(bus: Bus): () => void {
  let timer: NodeJS.Timeout | undefined
  let isDue = false
  const publish = () => {
    bus.publish(WAKE, null).catch(() => undefined)
  }
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

/** Calls `wake` for each announcement and after possible losses, until closed. */
export async function listenForWakes(bus: Bus, wake: () => void): Promise<{ close(): void }> {
  const gaps = bus.onGap(wake)
  const listening = await bus.listen(WAKE, wake)
  return {
    close() {
      gaps.close()
      listening.close().catch(() => undefined)
    },
  }
}
