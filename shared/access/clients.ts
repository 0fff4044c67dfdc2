/** What a ClientApplication proves itself with. */
import { hash, timingSafeEqual } from 'node:crypto'
import type { Resource } from '../fhir/resource.ts'

const LONGEST_ACCESS_SECONDS = 86_400
const DEFAULT_ACCESS_SECONDS = 3600
const UNIT_SECONDS: Readonly<Record<string, number>> = {
  s: 1,
  m: 60,
  h: 3600,
  d: 86_400,
  w: 604_800,
  y: 31_536_000,
}
export const LIFETIME = /^(\d+)([smhdwy])$/

/** Absent status is active. */
export function isActiveClient(client: Resource): boolean {
  return client.status === undefined || client.status === 'active'
}

/** Compares with `secret` and `retiringSecret` in constant time. */
export function secretMatches(client: Resource, given: string): boolean {
  const wanted = [client.secret, client.retiringSecret].filter((item) => typeof item === 'string')
  return wanted.map((secret) => equalTexts(secret, given)).includes(true)
}

function equalTexts(a: string, b: string): boolean {
  // Digests have one length; the secrets need not, and theirs must not show.
  return timingSafeEqual(hash('sha256', a, 'buffer'), hash('sha256', b, 'buffer'))
}

/** Seconds an access token of this client lives; at most 24 h. */
export function accessTokenSeconds(client: Resource): number {
  const match = LIFETIME.exec(String(client.accessTokenLifetime ?? ''))
  if (!match) return DEFAULT_ACCESS_SECONDS
  const seconds = Number(match[1]) * (UNIT_SECONDS[match[2] ?? ''] ?? 0)
  return Math.max(1, Math.min(seconds, LONGEST_ACCESS_SECONDS))
}
