/** Conditional references: `"reference": "Patient?identifier=…"`. https://hl7.org/fhir/R4/http.html#trules */
import { badRequest, HttpError, MissingTarget, outcome } from '../core/errors.ts'
import { mapStrings } from '../fhir/json.ts'
import { isResource, type Resource, visitReferences } from '../fhir/resource.ts'
import type { FhirContext } from '../request/request.ts'
import type { SearchRequest } from '../search/language/search-request.ts'
import type { SearchPage } from '../store/rows/version.ts'
import { readCondition, resolved } from './criteria.ts'

export interface ConditionalReference {
  readonly text: string
  readonly path: string
  /** Equal for the same criteria in any order. */
  readonly key: string
  readonly condition: SearchRequest
}

export type Matches = ReadonlyMap<string, PromiseSettledResult<SearchPage>>

const FORM = /^([A-Za-z]+)\?(.+)$/

/** Errors: 400 at an invalid reference. */
export function conditionalReferences(
  context: FhirContext,
  resource: Resource,
): readonly ConditionalReference[] {
  const found: ConditionalReference[] = []
  visitReferences(resource, resource.resourceType, (text, path) => {
    const [, type, query] = FORM.exec(text) ?? []
    if (type === undefined) return
    try {
      const criteria = new URLSearchParams(query)
      const condition = readCondition(context, type, criteria)
      const key = criteriaKey(type, criteria)
      found.push({ text, path, key, condition: { ...condition, count: 2 } })
    } catch (error) {
      throw located(error, path)
    }
  })
  return found
}

export function criteriaKey(type: string, criteria: URLSearchParams): string {
  const pairs = [...criteria].map((pair) => pair.join('=')).sort()
  return `entry ${type}?${pairs.join('&')}`
}

/** Runs the searches, up to 200 per statement. */
export async function findMatches(
  context: FhirContext,
  asked: ReadonlyMap<string, SearchRequest>,
): Promise<Matches> {
  if (asked.size === 0) return new Map()
  const { services, principal } = context
  const found = new Map<string, PromiseSettledResult<SearchPage>>()
  const requests = new Map<string, SearchRequest>()
  await Promise.all(
    [...asked].map(async ([name, request]) => {
      try {
        requests.set(name, { ...(await resolved(context, request)), sort: [] })
      } catch (reason) {
        found.set(name, { status: 'rejected', reason })
      }
    }),
  )
  const pages = await services.repository.searchMany(principal, [...requests.values()])
  for (const [i, name] of [...requests.keys()].entries()) {
    const page = pages[i]
    if (page !== undefined) found.set(name, page)
  }
  return found
}

/** Returns `Type/id` of the only match, existing or `made` by the bundle. Errors: 400 at the element, 403. */
export function requireSingleMatch(
  { text, path }: ConditionalReference,
  matches: Matches,
  made: readonly string[] = [],
): string {
  const found = matches.get(text)
  if (found?.status !== 'fulfilled') throw located(found?.reason, path)
  const stored = found.value.versions.map(({ type, id }) => `${type}/${id}`)
  const [match, second] = [...stored, ...made]
  const named = `Conditional reference '${text.slice(0, 256)}'`
  if (match === undefined) {
    const missing = badRequest(`${named} did not match any resources`, path)
    throw new MissingTarget(missing.status, missing.outcome)
  }
  if (second !== undefined) throw badRequest(`${named} matched multiple resources`, path)
  return match
}

/** Resolves conditional references with one statement; skipped without a question mark. */
export async function withLiteralReferences<T>(context: FhirContext, body: T): Promise<T> {
  if (!isResource(body) || context.request.body?.includes('?') !== true) return body
  return literalReferences(context, body)
}

export async function literalReferences<T extends Resource>(
  context: FhirContext,
  body: T,
): Promise<T> {
  const references = conditionalReferences(context, body)
  if (references.length === 0) return body
  const asked = new Map(references.map(({ text, condition }) => [text, condition]))
  const matches = await findMatches(context, asked)
  const targets = new Map(
    references.map((reference) => [reference.text, requireSingleMatch(reference, matches)]),
  )
  return mapStrings(body, (text, name) => (name === 'reference' && targets.get(text)) || text)
}

function located(error: unknown, path: string): unknown {
  if (!(error instanceof HttpError)) return error
  const issues = error.outcome.issue.map((item) => ({ ...item, expression: [path] }))
  return new HttpError(error.status, outcome(error.outcome.id, ...issues), { cause: error })
}
