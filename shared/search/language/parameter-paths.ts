/**
 * The elements that a search parameter reads, and what reference parameters find there. Whoever may not see them
 * may not search by it either.
 */
import { searchParameter, searchParameters, storedParameters } from '../../fhir/definitions.ts'
import type { OwnParameters, SearchParameter } from '../../fhir/definitions-data.ts'
import { type Resource, referenceIn } from '../../fhir/resource.ts'
import { extractTarget } from '../../fhir/values.ts'
import { compileExpression, type Leg, type Walk } from '../../fhirpath/extract.ts'
import { type Expression, parsePath } from '../../fhirpath/parse.ts'

const READS_ALL: ReadonlySet<string> = new Set(['_text', '_content', '_score'])

/**
 * Element paths below the type, `name.family`; a choice is named without its type. Undefined: it reads
 * all of the resource, or may, as a parameter of a Project's own.
 */
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

/** Paths from `context`, those that conditions on the way look at included. */
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

/** `Type/id`, with its version if it has one, full addresses and canonicals that one reference parameter holds. */
export function referenceLiterals(
  resource: Resource,
  code: string,
  own?: OwnParameters,
): readonly string[] {
  const found = new Set<string>()
  const parameter = searchParameter(resource.resourceType, code, own)
  if (parameter === undefined) return []
  for (const walk of referenceWalks(resource.resourceType, parameter).walks) walk(resource, found)
  return [...found]
}

/** The members of a resource that `referenceLiterals` reads. Undefined: any of them. */
export function literalRoots(
  type: string,
  code: string,
  own?: OwnParameters,
): readonly string[] | undefined {
  const parameter = searchParameter(type, code, own)
  return parameter === undefined ? [] : referenceWalks(type, parameter).roots
}

/** The reference parameters that `*` of an include stands for: those of the standard's elements. */
export function referenceParameters(type: string, own?: OwnParameters): readonly string[] {
  return [...searchParameters(type, own).values()]
    .filter((parameter) => parameter.type === 'reference' && !parameter.code.startsWith('_'))
    .map(({ code }) => code)
}

interface Walks {
  readonly walks: readonly Walk<Set<string>>[]
  readonly roots: readonly string[] | undefined
}

const compiled = new WeakMap<SearchParameter, Walks>()

function referenceWalks(type: string, parameter: SearchParameter): Walks {
  const known = compiled.get(parameter)
  if (known !== undefined) return known
  const legs = parameterLegs(type, parameter)
  const walks = legs.map((leg) =>
    leg.bind<Set<string>>((value, found) => {
      const literal = extractTarget(leg.type, value)?.literal
      if (literal === undefined) return
      const whole = referenceIn(value)
      found.add(whole?.startsWith(`${literal}/_history/`) ? whole : literal)
    }),
  )
  const roots = legs.flatMap(({ root }) => root ?? [])
  const found = { walks, roots: roots.length < legs.length ? undefined : roots }
  compiled.set(parameter, found)
  return found
}

/** References that only the FHIRPath engine can follow are found by their keys, but not included. */
function parameterLegs(type: string, parameter: SearchParameter): readonly Leg[] {
  const { expression } = parameter
  const isPath = expression !== undefined && !('isGeneral' in parameter && parameter.isGeneral)
  return isPath ? compileExpression(type, expression) : []
}
