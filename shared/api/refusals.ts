/** Why something was refused is told to the log, never to the caller. */
import type { Principal } from '../access/principal.ts'
import { HttpError } from '../errors.ts'
import type { Services } from '../services.ts'

/** One line for a 403 that knows what decided it: a layer, an entry of a policy. */
export function logRefusal(
  { log }: Pick<Services, 'log'>,
  { project, membershipId }: Principal,
  requestId: string,
  error: unknown,
): void {
  if (!(error instanceof HttpError) || error.status !== 403) return
  if (typeof error.cause !== 'string') return
  const who = { project: project.id, membership: membershipId }
  log.info({ requestId, ...who, refused: error.cause }, 'refused')
}
