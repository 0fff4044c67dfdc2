/** Conditions in headers belong to some interactions each; elsewhere they would be promises that nobody keeps. */
import { notSupported } from '../errors.ts'
import type { Route } from './request.ts'

/** Header → the interactions that keep to it. https://hl7.org/fhir/R4/http.html#concurrency */
const KEPT: readonly (readonly [header: string, kinds: ReadonlySet<Route['kind']>])[] = [
  [
    'If-Match',
    new Set(['update', 'patch', 'delete', 'conditional-update', 'conditional-patch'] as const),
  ],
  ['If-None-Match', new Set(['update', 'conditional-update'] as const)],
  ['If-None-Exist', new Set(['create'] as const)],
]

/**
 * Reads may be answered in spite of a condition, and a bot sees the headers of its call. `pathOf` gives the place of a
 * header in a bundle. Errors: 400 for a condition of a change that the interaction does not keep to.
 */
export function requireKept(
  method: string,
  route: Route,
  headers: Readonly<Record<string, string | undefined>>,
  pathOf?: (header: string) => string,
): void {
  if (method === 'GET' || method === 'HEAD') return
  if (route.kind === 'operation' && route.operation.acts) return
  for (const [header, kinds] of KEPT) {
    if (headers[header.toLowerCase()] === undefined || kinds.has(route.kind)) continue
    throw notSupported(`${header} does not apply to this interaction`, pathOf?.(header))
  }
}
