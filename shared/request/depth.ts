/** How many bots have caused each other until a request was made. */
import type { FhirRequest } from './request.ts'

/** Counts bots that call each other; a bot cannot set it, the worker writes it over. */
export const DEPTH_HEADER = 'x-bot-depth'
export const MAX_DEPTH = 10

/** 0 for a request that no bot has made. */
export function depthOf({ headers }: Pick<FhirRequest, 'headers'>): number {
  const depth = Number(headers[DEPTH_HEADER] ?? 0)
  return Number.isInteger(depth) && depth > 0 ? depth : 0
}
