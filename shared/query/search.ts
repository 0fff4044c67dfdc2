/** Query string → SearchRequest, as plain data. https://hl7.org/fhir/R4/search.html */

import { badRequest, located, tooCostly } from '../errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { readCriterion } from './criteria.ts'
import { readInclude } from './includes.ts'
import { readPaging } from './paging.ts'
import type { Criterion, Ignored, Include, Refusal, SearchRequest } from './search-request.ts'

export interface SearchOptions {
  /** `Prefer: handling=`; strict refuses unknown parameters. Absent: strict. */
  readonly handling?: 'strict' | 'lenient'
  /** Base of our own absolute references, `https://host/fhir/R4/`. */
  readonly fhirUrl?: string
  /** Search parameters of the caller's Project. */
  readonly own?: OwnParameters | undefined
}

const MAX_CONDITIONS = 200
const MAX_INCLUDES = 100

/** Steer the answer and are read elsewhere; not part of what is searched. */
const CONTROL = new Set([
  '_count',
  '_offset',
  '_cursor',
  '_sort',
  '_total',
  '_summary',
  '_elements',
  '_explain',
  '_fields',
  '_format',
  '_pretty',
  '_',
])

/** Errors: 400 as search.html and the contract say; 400 not-supported for what is not answered. */
export function parseSearch(
  type: string,
  query: URLSearchParams | string,
  options: SearchOptions = {},
): SearchRequest {
  if (!isResourceType(type)) throw badRequest(`Unknown resource type: ${type}`)
  const pairs = typeof query === 'string' ? new URLSearchParams(query) : query
  const isLenient = options.handling === 'lenient'
  const conditions = new Map<string, Criterion>()
  const includes = new Map<string, Include>()
  const ignored: Ignored[] = []
  const { own } = options
  const scope = { fhirUrl: options.fhirUrl, own, joins: 0 }
  const refuse = ({ reason }: Refusal, name: string, value: string) => {
    if (!isLenient) throw reason
    ignored.push({ name, value, text: reason.message })
  }
  const read = (name: string, value: string) => {
    if (/^_(rev)?include(:|$)/.test(name)) {
      const include = readInclude(name, value, own)
      if ('reason' in include) return refuse(include, name, value)
      includes.set(JSON.stringify(include), include)
      return
    }
    const criterion = readCriterion(type, name, value, scope)
    if (criterion === undefined) return
    if ('reason' in criterion) return refuse(criterion, name, value)
    conditions.set(JSON.stringify([name, criterion]), criterion)
    if (conditions.size > MAX_CONDITIONS) {
      throw tooCostly(`A search may have ${MAX_CONDITIONS} conditions`)
    }
  }
  for (const [name, value] of pairs) {
    if (CONTROL.has(name) || value === '' || (name === '_contained' && value === 'false')) continue
    try {
      read(name, value)
    } catch (error) {
      throw located(error, name)
    }
  }
  if (includes.size > MAX_INCLUDES) throw tooCostly(`A search may have ${MAX_INCLUDES} includes`)
  return {
    type,
    conditions: [...conditions.values()],
    includes: [...includes.values()],
    ...readPaging(type, pairs, own),
    ignored,
  }
}
