/** Load limits per minute of a member and its Project (system setting `enableFhirQuota`). */
import { setTimeout as delay } from 'node:timers/promises'
import type { Principal } from '../access/principal.ts'
import { tooManyRequests } from '../core/errors.ts'
import { type RateLimitState, rateLimitItem, retryAfterSeconds } from '../redis/limiter.ts'
import type { FhirRequest, Route } from './request.ts'
import type { Services } from './services.ts'

export const WRITE = 100
export const SEARCH = 20
const HISTORY = 10
export const READ = 1

/** Load units of an interaction. A bundle costs the sum of its entries. */
export function loadUnits(route: Route): number {
  const { kind } = route
  switch (kind) {
    case 'metadata':
    case 'bundle':
      return 0
    case 'read':
    case 'vread':
      return READ
    case 'history':
    case 'type-history':
    case 'system-history':
      return HISTORY
    case 'search':
    case 'search-form':
    case 'system-search':
    case 'compartment-search':
      return SEARCH
    case 'operation':
      return route.operation.countsLoad ? 0 : SEARCH
    case 'create':
    case 'update':
    case 'patch':
    case 'delete':
    case 'conditional-update':
    case 'conditional-patch':
    case 'conditional-delete':
      return WRITE
    default:
      return kind satisfies never
  }
}

interface Charge {
  readonly request: Pick<FhirRequest, 'mayWait'>
  readonly units: number
  readonly whole?: boolean | undefined
}

export function projectLoad(id: string): string {
  return `project:${id}`
}

/** Returns the `RateLimit` item, if any. `whole`: passes while anything is left. Errors: 429. */
export async function charge(
  { load }: Pick<Services, 'load'>,
  { project, membershipId, quota: own }: Principal,
  { request, units, whole = false }: Charge,
): Promise<string | undefined> {
  const { quota } = project
  if (quota === undefined || membershipId === undefined) return undefined
  const limits = [
    [`member:${membershipId}`, own ?? quota.member],
    [projectLoad(project.id), quota.project],
  ] as const
  const spent = limits
    .filter(([, limit]) => limit >= 0)
    .map(([key, limit]) => ({ limit, ...load.spend(key, units, limit) }))
    .sort((a, b) => a.remaining - b.remaining)
  const [scarcest] = spent
  if (scarcest === undefined) return undefined
  const isOver = whole ? scarcest.remaining + units <= 0 : scarcest.remaining < 0
  if (isOver && !request.mayWait) throw refusal(scarcest, scarcest.limit)
  if (isOver) await untilReset(scarcest.resetMs, request.mayWait)
  return rateLimitHeader(scarcest)
}

async function untilReset(ms: number, signal: AbortSignal | undefined): Promise<void> {
  await delay(ms, undefined, signal ? { signal } : {}).catch((error: unknown) => {
    throw signal?.reason ?? error
  })
}

function rateLimitHeader(spent: RateLimitState): string {
  return rateLimitItem('fhirInteractions', spent)
}

function refusal(spent: RateLimitState, limit: number) {
  const diagnostics = JSON.stringify({ msBeforeNext: spent.resetMs, limit })
  return tooManyRequests(retryAfterSeconds(spent.resetMs), diagnostics, rateLimitHeader(spent))
}
