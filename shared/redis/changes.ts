/** Cache invalidation across processes. After a gap everything counts as changed; caches also expire by time. */
import { randomUUID } from 'node:crypto'
import type { CacheChange, Changed } from '../core/cache.ts'
import { type Bus, messageKind } from './bus.ts'
import type { Redis } from './redis.ts'

/** Hears of changes, or of `everything`. */
export type ChangeListener = (changes: Changed) => void

export interface Changes {
  /** Resolves when Redis has accepted the change; on failure `everything` follows once Redis is back. */
  report(change: CacheChange): Promise<void>
  follow(listener: ChangeListener): void
}

interface Message {
  readonly origin: string
  readonly changes: Changed
}

const CHANGES = messageKind<Message>('changes')

/** `redis` is the bus's publishing connection. */
export async function openChanges(bus: Bus, redis: Redis): Promise<Changes> {
  const origin = randomUUID()
  const listeners: ChangeListener[] = []
  const notify: ChangeListener = (changes) => {
    for (const listener of listeners) listener(changes)
  }
  bus.onGap(() => notify('everything'))
  await bus.listen(CHANGES, (message) => {
    if (message.origin !== origin) notify(message.changes)
  })
  const send = sender(bus, redis, origin)
  return {
    async report(change) {
      notify([change])
      await send(change)
    },
    follow: (listener) => void listeners.push(listener),
  }
}

/** Batches changes while a message is in flight. */
function sender(bus: Bus, redis: Redis, origin: string): (change: CacheChange) => Promise<void> {
  let waiting: CacheChange[] = []
  let isBehind = false
  let sending: Promise<void> | undefined
  const send = async () => {
    while (waiting.length > 0 || isBehind) {
      const changes = isBehind ? 'everything' : waiting
      waiting = []
      isBehind = await bus.publish(CHANGES, { origin, changes }).then(
        () => false,
        () => true,
      )
      if (isBehind) return
    }
  }
  const start = () => {
    sending ??= send().finally(() => {
      sending = undefined
    })
    return sending
  }
  redis.on('ready', () => void (isBehind && start()))
  return (change) => {
    waiting.push(change)
    return start()
  }
}
