/**
 * Elements that a search parameter reads, and references found there. Callers that may not see these elements may not
 * search by the parameter.
 */
import { searchParameter, searchParameters, storedParameters } from '../../fhir/definitions.ts'
import type { OwnParameters, SearchParameter } from '../../fhir/definitions-data.ts'
import { type Resource, referenceIn } from '../../fhir/resource.ts'
import { extractTarget } from '../../fhir/values.ts'
import { compileExpression, type Leg, type Walk } from '../../fhirpath/extract.ts'
import { type Expression, parsePath } from '../../fhirpath/parse.ts'

const READS_ALL: ReadonlySet<string> = new Set(['_text', '_content', '_score'])

/** Returns element paths without choice suffixes, such as `name.family`; undefined for the whole resource. */
export function pathsRead(
  type: string,
  code: string,
  own: OwnParameters | undefined,
): readonly string[] | undefined {
  if (READS_ALL.has(code)) return undefined
  const mine = own?.types.get(type)?.get(code)
  if (mine !== undefined) return mine.isGeneral ? undefined : parameterPaths(type, mine)
  const key = `${type} ${code}`
  const known = read.get(key)
  if (known !== undefined) return known
  const found = storedParameters(type, code).flatMap((stored) =>
    parameterPaths(type, searchParameter(type, stored)),
  )
  read.set(key, found)
  return found
}

const read = new Map<string, readonly string[]>()

function parameterPaths(type: string, parameter: SearchParameter | undefined): readonly string[] {
  if (parameter?.expression === undefined) return []
  const whole = expressionPaths(parsePath(parameter.expression), [''], type)
  const parts = (parameter.components ?? []).flatMap((part) =>
    expressionPaths(parsePath(part.expression), whole, type),
  )
  return [...new Set([...whole, ...parts])].filter((path) => path !== '')
}

function expressionPaths(
  expression: Expression,
  context: readonly string[],
  type: string,
): readonly string[] {
  switch (expression.kind) {
    case 'member': {
      const { of, name } = expression
      const isRoot = [type, 'Resource', 'DomainResource'].includes(name)
      if (of === undefined && isRoot) return context
      const base = of === undefined ? context : expressionPaths(of, context, type)
      return base.map((path) => (path === '' ? name : `${path}.${name}`))
    }
    case 'union':
      return expression.parts.flatMap((part) => expressionPaths(part, context, type))
    case 'index':
    case 'type':
      return expressionPaths(expression.of, context, type)
    case 'call': {
      const { of, name, args } = expression
      const base = of === undefined ? context : expressionPaths(of, context, type)
      const isPlain = ['as', 'ofType', 'is', 'resolve', 'extension'].includes(name)
      return [...base, ...(isPlain ? [] : args.flatMap((arg) => expressionPaths(arg, base, type)))]
    }
    case 'binary':
      return [
        ...expressionPaths(expression.left, context, type),
        ...expressionPaths(expression.right, context, type),
      ]
    case 'literal':
    case 'variable':
      return []
    default:
      return expression satisfies never
  }
}

/** Returns `Type/id`, with the version if given, absolute URLs and canonicals of a reference parameter. */
export function referenceLiterals(
  resource: Resource,
  code: string,
  own: OwnParameters | undefined,
): readonly string[] {
  const found = new Set<string>()
  const parameter = searchParameter(resource.resourceType, code, own)
  if (parameter === undefined) return []
  for (const walk of referenceWalks(resource.resourceType, parameter)) walk(resource, found)
  return [...found]
}

/** Reference parameters covered by `*` of an include: those of standard elements. */
export function referenceParameters(type: string, own?: OwnParameters): readonly string[] {
  return [...searchParameters(type, own).values()]
    .filter((parameter) => parameter.type === 'reference' && !parameter.code.startsWith('_'))
    .map(({ code }) => code)
}

const compiled = new WeakMap<SearchParameter, readonly Walk<Set<string>>[]>()

function referenceWalks(type: string, parameter: SearchParameter): readonly Walk<Set<string>>[] {
  const known = compiled.get(parameter)
  if (known !== undefined) return known
  const walks = parameterLegs(type, parameter).map((leg) =>
    leg.bind<Set<string>>((value, found) => {
      const literal = extractTarget(leg.type, value)?.literal
      if (literal === undefined) return
      const whole = referenceIn(value)
      found.add(whole?.startsWith(`${literal}/_history/`) ? whole : literal)
    }),
  )
  compiled.set(parameter, walks)
  return walks
}

/** References that need the FHIRPath engine are searchable by key, but not included. */
function parameterLegs(type: string, parameter: SearchParameter): readonly Leg[] {
  const { expression } = parameter
  const isPath = expression !== undefined && !('isGeneral' in parameter && parameter.isGeneral)
  return isPath ? compileExpression(type, expression) : []
}
