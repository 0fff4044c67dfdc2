/**
 * Definitions that everybody shares are not stored in any Project. The SDK asks for them by root lists,
 * so those answer with them behind what the Project has of its own.
 */
import { publishedDefinition, publishedParameters, publishedType } from '../../fhir/published.ts'
import type { Resource } from '../../fhir/resource.ts'
import type { Given } from '../schema/sources.ts'

/** The definitions that a list by url, `StructureDefinitionList` by name or `SearchParameterList` by type finds. */
export function publishedFor(type: string, given: Given): readonly Resource[] {
  const { _count, ...asked } = given
  const [[name, value] = [], ...others] = Object.entries(asked)
  // A variable that is one text stands for a list of one.
  const texts: readonly unknown[] = Array.isArray(value) ? value : [value]
  const text = texts.length === 1 && typeof texts[0] === 'string' ? texts[0] : undefined
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
