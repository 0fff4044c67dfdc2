/** The body of a notification: a version as the one who is told may see it. */
import type { Principal } from '../access/principal.ts'
import type { Services } from '../services.ts'
import type { Waited } from '../store/event-sight.ts'
import { present, type VersionRow } from '../store/rows.ts'
import { signAttachments, signBinary } from './attachments.ts'

/** JSON text with its platform meta and signed addresses; undefined when the Principal may not see it: see `events.seen`. */
export async function eventBody(
  services: Services,
  principal: Principal,
  row: VersionRow,
  waited?: Waited,
): Promise<string | undefined> {
  const version = await services.repository.events.seen(principal, row, waited)
  if (version === undefined) return undefined
  const text = present(version, principal, true)
  if (version.type === 'Binary') return signBinary(services, version, text)
  return signAttachments(services, principal, text)
}
