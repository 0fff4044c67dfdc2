/** Resource → what its reference parameters refer to. */
import { searchParameter, searchParameters } from './definitions.ts'
import { compileExpression, type Walk } from './path-extract.ts'
import type { Resource } from './resource.ts'
import { targetOf } from './values.ts'

/** `Type/id`, full addresses and canonicals that one reference parameter of the resource holds. */
export function literalsOf(resource: Resource, code: string): readonly string[] {
  const found = new Set<string>()
  for (const walk of walksOf(resource.resourceType, code)) walk(resource, found)
  return [...found]
}

/** The reference parameters that `*` of an include stands for: those of the standard's elements. */
export function referenceParameters(type: string): readonly string[] {
  return [...searchParameters(type).values()]
    .filter((parameter) => parameter.type === 'reference' && !parameter.code.startsWith('_'))
    .map(({ code }) => code)
}

const compiled = new Map<string, readonly Walk<Set<string>>[]>()

function walksOf(type: string, code: string): readonly Walk<Set<string>>[] {
  const name = `${type}|${code}`
  const known = compiled.get(name)
  if (known !== undefined) return known
  const { expression } = searchParameter(type, code) ?? {}
  const legs = expression === undefined ? [] : compileExpression(type, expression)
  const walks = legs.map((leg) =>
    leg.bind<Set<string>>((value, found) => {
      const literal = targetOf(leg.type, value)?.literal
      if (literal !== undefined) found.add(literal)
    }),
  )
  compiled.set(name, walks)
  return walks
}
