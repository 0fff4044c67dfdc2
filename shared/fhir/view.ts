/**
 * Parts of a resource: `_summary` and `_elements` (also `_fields`).
 * https://hl7.org/fhir/R4/search.html#summary, #elements
 */
import { badRequest } from '../errors.ts'
import { elementsOf } from './definitions.ts'
import type { ElementDefinition } from './definitions-data.ts'
import { parseJson } from './json.ts'
import { isObject } from './resource.ts'

/** Takes and gives the JSON text of a resource of the type the view was made for. */
export type View = (text: string) => string

/** The view a query asks for; undefined is the whole resource. Errors: 400 for an unknown value. */
export function viewOf(type: string, query: URLSearchParams): View | undefined {
  const elements = [query.get('_elements'), query.get('_fields')].find((list) => list)
  if (elements) return keep(type, namedBy(elements))
  const summary = query.get('_summary')
  switch (summary) {
    case null:
    case '':
    case 'false':
    case 'count':
      return undefined
    case 'true':
      return keep(type, (element) => element.summary === true)
    case 'text':
      return keep(type, (element) => element.path === 'text')
    case 'data':
      return subset(({ text: _text, ...rest }) => rest)
    default:
      throw badRequest(`Invalid value of _summary: ${summary.slice(0, 100)}`)
  }
}

function namedBy(list: string): (element: ElementDefinition) => boolean {
  const names = list.split(',').map((name) => name.trim().split('.')[0] ?? '')
  const wanted = new Set(names.map((name) => name.replace(/\[x\]$/, '')))
  return (element) => namesOf(element).some((name) => wanted.has(name)) || wanted.has(element.path)
}

/** Mandatory and modifier elements always stay: without them the rest may be misread. */
function keep(type: string, isWanted: (element: ElementDefinition) => boolean): View {
  const kept = new Set(['resourceType', 'id', 'meta'])
  for (const element of elementsOf(type)) {
    if (element.path.includes('.')) continue
    if (!isWanted(element) && !element.min && !element.modifier) continue
    for (const name of namesOf(element)) kept.add(name).add(`_${name}`)
  }
  return subset((resource) =>
    Object.fromEntries(Object.entries(resource).filter(([name]) => kept.has(name))),
  )
}

function namesOf({ path, choice, types }: ElementDefinition): string[] {
  if (!choice) return [path]
  return types.map(({ code }) => path + code.charAt(0).toUpperCase() + code.slice(1))
}

const SUBSETTED = {
  system: 'http://terminology.hl7.org/CodeSystem/v3-ObservationValue',
  code: 'SUBSETTED',
}

/** Marks the result, so that no client takes it for the whole. */
function subset(cut: (resource: Record<string, unknown>) => Record<string, unknown>): View {
  return (text) => {
    const resource = parseJson(text)
    if (!isObject(resource)) return text
    const meta = isObject(resource.meta) ? resource.meta : {}
    const tags = Array.isArray(meta.tag) ? meta.tag : []
    return JSON.stringify(cut({ ...resource, meta: { ...meta, tag: [...tags, SUBSETTED] } }))
  }
}
