/**
 * Definitions that everybody shares are not stored in any Project. The SDK asks for them by root lists,
 * so those answer with them behind what the Project has of its own.
 */
import { publishedDefinition, publishedParameters, publishedType } from '../fhir/published.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Given } from './request-state.ts'

/** What a list by url, `StructureDefinitionList` by name or `SearchParameterList` by type finds of them. */
export function publishedFor(type: string, given: Given): readonly Resource[] {
  const { _count, ...asked } = given
  const [[name, value] = [], ...others] = Object.entries(asked)
  const text = Array.isArray(value) && value.length === 1 ? String(value[0]) : undefined
  if (name === undefined || text === undefined || others.length > 0) return []
  if (type === 'SearchParameter') return name === 'base' ? publishedParameters(text) : []
  if (name === 'url') {
    return [publishedDefinition(type, text)].filter((found) => found !== undefined)
  }
  if (type !== 'StructureDefinition') return []
  const wanted = name === '_filter' ? /^name eq "?(\w+)"?$/.exec(text)?.[1] : text
  if (wanted === undefined || !['_filter', 'name', 'type'].includes(name)) return []
  const found = publishedType(wanted)
  return found === undefined ? [] : [found]
}
