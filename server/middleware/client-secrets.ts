/**
 * Secrets of clients at the door. Wrong ones are counted by client and address, so that whoever guesses pauses nobody
 * elsewhere; the count is this process' own first (limiter.ts), so that a right one costs no command of Redis.
 */
import { secretMatches } from '../../shared/access/credentials/clients.ts'
import { tooManyRequests } from '../../shared/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { secondsOf } from '../../shared/platform/redis/limiter.ts'
import type { Services } from '../../shared/services.ts'

const WRONG_PER_MINUTE = 60

/** `address` as of `addressOf`. Errors: 429 after too many wrong ones in a minute. */
export function isSecretOf(
  { wrongSecrets }: Services,
  client: Resource,
  secret: string,
  address: string,
): boolean {
  const key = `${client.id}:${address}`
  const { left, resetMs } = wrongSecrets.spend(key, 0, WRONG_PER_MINUTE)
  if (left <= 0) throw tooManyRequests(secondsOf(resetMs))
  const isRight = secretMatches(client, secret)
  if (!isRight) wrongSecrets.spend(key, 1, WRONG_PER_MINUTE)
  return isRight
}
