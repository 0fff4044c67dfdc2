/** The body of a notification: a version as its receiver may see it. */

import type { Principal } from '../access/principal.ts'
import { signAttachments, signBinary } from '../binary/attachments.ts'
import type { Services } from '../services.ts'
import { present, type VersionRow } from '../store/rows/rows.ts'
import type { Waited } from './event-match.ts'
import { createEvents } from './events.ts'

/** JSON text with its platform meta and signed addresses; undefined when the Principal may not see it: see `events.seen`. */
export async function eventBody(
  services: Services,
  principal: Principal,
  row: VersionRow,
  waited?: Waited,
): Promise<string | undefined> {
  const version = await services.repository.feature(createEvents).seen(principal, row, waited)
  if (version === undefined) return undefined
  const text = present(version, principal, true)
  if (version.type === 'Binary') return signBinary(services, version, text)
  return signAttachments(services, principal, text)
}
