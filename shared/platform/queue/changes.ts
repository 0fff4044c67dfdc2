/**
 * Wakes the workers when the outbox has got something. A wake carries nothing and may be lost: workers
 * look by themselves, too, only later.
 */
import type { Config } from '../../config/config.ts'
import type { Logger } from '../../log.ts'
import { openRedis, type Redis } from '../redis/redis.ts'
import { PREFIX } from './scripts.ts'

const CHANNEL = `${PREFIX}:changes`
/** Changes so close together wake once. */
const TOGETHER_MS = 2

/** Wakes at once, then at most every 2 ms. */
export function createAnnouncer(redis: Redis): () => void {
  let timer: NodeJS.Timeout | undefined
  let isDue = false
  const publish = () => {
    redis.publish(CHANNEL, '').catch(() => undefined)
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

/** Calls `wake` for every announcement until it is closed. */
export function listenForChanges(config: Config, log: Logger, wake: () => void): { close(): void } {
  const redis = openRedis(config, 'subscribe', log)
  redis.on('message', wake)
  // Announcements are lost while the connection is away.
  redis.on('ready', wake)
  redis.subscribe(CHANNEL).catch((cause: unknown) => {
    log.warn({ cause }, 'Changes are not listened for')
  })
  return { close: () => redis.disconnect() }
}
