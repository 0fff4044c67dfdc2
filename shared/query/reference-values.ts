/** Resource → what its reference parameters refer to. */
import { searchParameter, searchParameters } from '../fhir/definitions.ts'
import type { OwnParameters, SearchParameter } from '../fhir/definitions-data.ts'
import type { Resource } from '../fhir/resource.ts'
import { targetOf } from '../fhir/values.ts'
import { compileExpression, type Leg, type Walk } from '../fhirpath/extract.ts'

/** `Type/id`, full addresses and canonicals that one reference parameter of the resource holds. */
export function literalsOf(
  resource: Resource,
  code: string,
  own?: OwnParameters,
): readonly string[] {
  const found = new Set<string>()
  const parameter = searchParameter(resource.resourceType, code, own)
  if (parameter === undefined) return []
  for (const walk of walksOf(resource.resourceType, parameter)) walk(resource, found)
  return [...found]
}

/** The reference parameters that `*` of an include stands for: those of the standard's elements. */
export function referenceParameters(type: string, own?: OwnParameters): readonly string[] {
  return [...searchParameters(type, own).values()]
    .filter((parameter) => parameter.type === 'reference' && !parameter.code.startsWith('_'))
    .map(({ code }) => code)
}

const compiled = new WeakMap<SearchParameter, readonly Walk<Set<string>>[]>()

function walksOf(type: string, parameter: SearchParameter): readonly Walk<Set<string>>[] {
  const known = compiled.get(parameter)
  if (known !== undefined) return known
  const walks = legsOf(type, parameter).map((leg) =>
    leg.bind<Set<string>>((value, found) => {
      const literal = targetOf(leg.type, value)?.literal
      if (literal !== undefined) found.add(literal)
    }),
  )
  compiled.set(parameter, walks)
  return walks
}

/** References that only the FHIRPath engine can follow are found by their keys, but not included. */
function legsOf(type: string, parameter: SearchParameter): readonly Leg[] {
  const { expression } = parameter
  const isPath = expression !== undefined && !('isGeneral' in parameter && parameter.isGeneral)
  return isPath ? compileExpression(type, expression) : []
}
