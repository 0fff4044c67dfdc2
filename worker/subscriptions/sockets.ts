/** Web sockets in the matching of changes. Stored Subscriptions do not wait for Redis: its outage is a gap for sockets. */
import type { Services } from '../../shared/request/services.ts'
import type { MatchOptions, Notification } from '../../shared/subscriptions/events.ts'
import {
  publishNotifications,
  socketSubscriptions,
} from '../../shared/subscriptions/socket-subscriptions.ts'

export interface SocketHooks extends Pick<MatchOptions, 'sockets' | 'publish'> {
  /** Reports a gap to the sockets, if Redis did not accept the event. */
  announceGaps(): Promise<void>
}

export function createSocketHooks(services: Services): SocketHooks {
  /** Subscriptions that have missed a change and do not know it yet. */
  const missed = new Set<string>()
  const miss = (notifications: readonly Notification[]) => {
    for (const { subscription } of notifications) missed.add(subscription)
  }
  const report = (error: Error) => {
    services.log.warn({ reason: error.message }, 'Web sockets miss changes until Redis is back')
  }
  return {
    /** Subscriptions that are not found get a gap. */
    async sockets(ids) {
      if (missed.size > 0) return new Map()
      return await socketSubscriptions(services, ids).catch((error: Error) => {
        report(error)
        return new Map()
      })
    },
    async publish(notifications) {
      if (missed.size > 0) return miss(notifications)
      await publishNotifications(services, notifications).catch((error: Error) => {
        report(error)
        miss(notifications)
      })
    },
    async announceGaps() {
      const subscriptions = [...missed]
      const gaps = subscriptions.map((subscription) => ({ subscription, event: undefined }))
      await publishNotifications(services, gaps).then(
        () => missed.clear(),
        // The connection reports the outage.
        () => undefined,
      )
    },
  }
}
