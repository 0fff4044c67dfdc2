/** Parameters of a query that may be given once. */
import { badRequest } from './errors.ts'

/** Returns the value of a parameter; empty values count as absent. Errors: 400 for different values. */
export function singleValue(query: URLSearchParams, name: string): string | undefined {
  const given = query.getAll(name)
  if (given.length < 2) return given[0] || undefined
  const [first, second] = new Set(given.filter((value) => value !== ''))
  if (second === undefined) return first
  throw badRequest(`${name} may be given once`, name)
}
