/** The search part of the CapabilityStatement, from the definitions that search itself uses. */
import {
  COMPARTMENTS,
  isResourceType,
  resourceTypes,
  searchParameter,
  searchParameters,
} from '../fhir/definitions.ts'
import type { OwnParameters, SearchParameter } from '../fhir/definitions-data.ts'
import { isOfWords } from '../fhir/resource-text.ts'
import { isReady } from '../query/custom-parameters.ts'
import { referenceParameters } from '../query/reference-values.ts'
import { hasFullText } from '../store/write/full-text.ts'

/** `searchParam`, `searchInclude`, `searchRevInclude` of a type. */
export function describeSearch(type: string, own: OwnParameters | undefined): object {
  return {
    searchInclude: ['*', ...includesOf(type, own)],
    searchRevInclude: ['*', ...(referrers().get(type) ?? [])],
    searchParam: searchParametersOf(type, own),
  }
}

export const compartments = COMPARTMENTS.map(
  (name) => `http://hl7.org/fhir/CompartmentDefinition/${name.toLowerCase()}`,
)

/** Answered for every type; the last ones shape the answer. */
export const sharedParameters = [
  ['_has', 'string'],
  ['_list', 'string'],
  ['_filter', 'special'],
  ['_compartment', 'reference'],
  ['_count', 'number'],
  ['_sort', 'string'],
  ['_total', 'token'],
  ['_summary', 'token'],
  ['_elements', 'string'],
].map(([name, type]) => ({ name, type }))

function searchParametersOf(type: string, own: OwnParameters | undefined): object[] {
  return [...searchParameters(type, own).values()]
    .filter((parameter) => isReady(parameter) && isAnswered(type, parameter, own))
    .map(({ code, url, type: kind }) => ({ name: code, definition: url, type: kind }))
}

function isAnswered(
  type: string,
  { code, expression }: SearchParameter,
  own: OwnParameters | undefined,
): boolean {
  if (expression !== undefined) return true
  return isOfWords(code) && own?.fullText === 'ready' && hasFullText(type)
}

function includesOf(type: string, own: OwnParameters | undefined): readonly string[] {
  return referenceParameters(type, own).map((code) => `${type}:${code}`)
}

let known: ReadonlyMap<string, readonly string[]> | undefined

/** A reference to anything is left out: `*` covers it, and each would be listed at every type. */
function referrers(): ReadonlyMap<string, readonly string[]> {
  if (known !== undefined) return known
  const found = new Map<string, string[]>()
  for (const source of resourceTypes) {
    for (const code of referenceParameters(source)) {
      for (const target of searchParameter(source, code)?.targets ?? []) {
        if (!isResourceType(target)) continue
        found.set(target, [...(found.get(target) ?? []), `${source}:${code}`])
      }
    }
  }
  known = found
  return found
}
