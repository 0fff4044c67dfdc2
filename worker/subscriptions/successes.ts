/**
 * Successes of a Subscription have an AuditEvent each as long as there are few; beyond that PostgreSQL
 * counts them with the receipts, and one AuditEvent reports all of a minute.
 */
import { LRUCache } from 'lru-cache'
import { HttpError } from '../../shared/errors.ts'
import type { Services } from '../../shared/services.ts'
import { parseVersion, toVersion } from '../../shared/store/rows/rows.ts'
import {
  takeUnreported,
  unreportedSubscriptions,
} from '../../shared/subscriptions/unreported-successes.ts'
import { auditSuccesses } from './audit.ts'

const ALONE_A_MINUTE = 60
const MINUTE_MS = 60_000
const KEPT = 20_000

/** Answers whether the next success of a Subscription has an AuditEvent of its own. */
export function createReportedAlone(): (subscription: string) => boolean {
  const counts = new LRUCache<string, { readonly minute: number; count: number }>({ max: KEPT })
  return (subscription) => {
    const minute = Math.floor(Date.now() / MINUTE_MS)
    let counted = counts.get(subscription)
    if (counted?.minute !== minute) {
      counted = { minute, count: 0 }
      counts.set(subscription, counted)
    }
    counted.count += 1
    return counted.count <= ALONE_A_MINUTE
  }
}

/** One of several workers does it. */
export async function reportSuccesses(services: Services): Promise<void> {
  for (const place of await unreportedSubscriptions(services.database)) {
    const reporting = services.repository.transaction(async (inner) => {
      const unreported = await inner.beside((connection) => takeUnreported(connection, place))
      if (unreported?.version === undefined) return
      const subscription = parseVersion(toVersion(unreported.version))
      await auditSuccesses(services, inner, subscription, unreported)
    })
    await reporting.catch((error: unknown) => {
      // A Subscription whose event cannot be written, as its Project is gone, does not hold up the others.
      if (!(error instanceof HttpError) || error.status >= 500) throw error
    })
  }
}
