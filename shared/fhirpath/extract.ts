/**
 * Compiles search expressions to plain closures. Each leg is a straight walk for one path and one type of its last
 * element, so values arrive with known types. Data of the wrong shape yields nothing and never throws.
 */
import { isObject } from '../fhir/resource.ts'
import { truth, values } from './closures.ts'
import {
  elementProperties,
  isResourceRoot,
  RESOLVED,
  referenceType,
  UnknownElement,
  type Variables,
} from './members.ts'
import { type Call, type Expression, parsePath } from './parse.ts'
import { NOT_PLAIN } from './values.ts'

/** Visits the values below a node, adding to `sink`. */
export type Walk<Sink> = (node: unknown, sink: Sink) => void

export interface Leg {
  /** Type of the values, such as `CodeableConcept` or `dateTime`; `Claim.item` for a backbone element. */
  readonly type: string
  /** Resource property that must be present; undefined when values come from the whole resource. */
  readonly root: string | undefined
  bind<Sink>(handle: Walk<Sink>): Walk<Sink>
}

/** Throws an Error for an expression outside the subset, UnknownElement for unknown elements of `type`. */
export function compileExpression(type: string, expression: string): readonly Leg[] {
  const start: Focus = { type, root: undefined, steps: [] }
  return compile(parsePath(expression), start).map((focus) => ({
    type: focus.type,
    root: focus.root,
    bind: (handle) => bind(focus.steps, handle),
  }))
}

type Step = <Sink>(next: Walk<Sink>) => Walk<Sink>

interface Focus {
  readonly type: string
  readonly root: string | undefined
  readonly steps: readonly Step[]
}

function bind<Sink>(steps: readonly Step[], handle: Walk<Sink>): Walk<Sink> {
  return steps.reduceRight<Walk<Sink>>((next, step) => step(next), handle)
}

function compile(expression: Expression, start: Focus): readonly Focus[] {
  switch (expression.kind) {
    case 'member': {
      const { of, name } = expression
      if (of === undefined)
        return isResourceRoot(start.type, name) ? [start] : children([start], name)
      return children(compile(of, start), name)
    }
    case 'union':
      return expression.parts.flatMap((part) => compile(part, start))
    case 'index': {
      if (expression.of.kind !== 'member') throw new Error('Only an element can have an index')
      const { of, name } = expression.of
      return children(of === undefined ? [start] : compile(of, start), name, expression.index)
    }
    case 'type':
      return expression.op === 'as'
        ? ofType(compile(expression.of, start), expression.type)
        : [computed('boolean', expression, start)]
    case 'call':
      return call(expression, start)
    case 'variable':
      throw new Error('Search expressions have no variables')
    case 'binary':
    case 'literal':
      return [computed('boolean', expression, start)]
    default:
      return expression satisfies never
  }
}

function call(expression: Call, start: Focus): readonly Focus[] {
  const { name, args, of } = expression
  const [first] = args
  if (name === 'iif') return [computed('decimal', expression, start)]
  if (name === 'exists' || name === 'empty' || name === 'is') {
    return [computed('boolean', expression, start)]
  }
  const foci = of === undefined ? [start] : compile(of, start)
  if (name === 'where' && first) return foci.map((focus) => where(focus, first))
  if ((name === 'as' || name === 'ofType') && first) return ofType(foci, nameIn(first))
  if (name === 'resolve') {
    return foci.map((focus) => ({ ...focus, type: RESOLVED, steps: [...focus.steps, resolve] }))
  }
  if (name === 'extension' && first?.kind === 'literal') {
    const isWanted = (node: unknown) => isObject(node) && node.url === first.value
    return children(foci, 'extension').map((focus) => ({
      ...focus,
      steps: [...focus.steps, filter(isWanted)],
    }))
  }
  throw new Error(`Search expressions have no function "${name}"`)
}

/** Some types of a choice may lack the element, but not all. */
function children(foci: readonly Focus[], name: string, index?: number): readonly Focus[] {
  const found = foci.flatMap((focus) => child(focus, name, index))
  if (found.length > 0) return found
  const types = [...new Set(foci.map((focus) => focus.type))].slice(0, 5).join(', ')
  throw new UnknownElement(`${types}: no element "${name}"`)
}

function child(focus: Focus, name: string, index?: number): Focus[] {
  if (focus.type === RESOLVED && name === 'resourceType') return [{ ...focus, type: 'code' }]
  const isStart = focus.steps.length === 0
  return elementProperties(focus.type, name).map(({ property, type }) => ({
    type,
    root: isStart ? property : focus.root,
    steps: [...focus.steps, index === undefined ? member(property) : memberAt(property, index)],
  }))
}

function member(property: string): Step {
  return (next) => (node, sink) => {
    if (!isObject(node)) return
    const value = node[property]
    if (value === undefined || value === null) return
    if (Array.isArray(value)) for (const item of value) next(item, sink)
    else next(value, sink)
  }
}

function memberAt(property: string, index: number): Step {
  return (next) => (node, sink) => {
    const value = isObject(node) ? node[property] : undefined
    if (Array.isArray(value) && index < value.length) next(value[index], sink)
  }
}

function filter(test: (node: unknown) => boolean): Step {
  return (next) => (node, sink) => {
    if (test(node)) next(node, sink)
  }
}

function where(focus: Focus, condition: Expression): Focus {
  return { ...focus, steps: [...focus.steps, filter(compileCondition(condition, focus.type))] }
}

const resolve: Step = (next) => (node, sink) => {
  const type = referenceType(node)
  if (type !== undefined) next(type, sink)
}

function ofType(foci: readonly Focus[], type: string): readonly Focus[] {
  const wanted = type.toLowerCase()
  const found = foci.filter((focus) => focus.type.toLowerCase() === wanted)
  if (found.length === 0) throw new Error(`No element of type ${type}`)
  return found
}

function computed(type: string, expression: Expression, start: Focus): Focus {
  const values = compileValues(expression, start.type)
  const step: Step = (next) => (node, sink) => {
    for (const value of values(node)) next(value, sink)
  }
  return { type, root: undefined, steps: [step] }
}

function nameIn(expression: Expression): string {
  if (expression.kind === 'member' && expression.of === undefined) return expression.name
  throw new Error('A type name is needed')
}

/** Compiles a condition on an element of `type`. Throws like `compileValues`. */
function compileCondition(expression: Expression, type: string): (focus: unknown) => boolean {
  const isTrue = truth(expression, { ...SEARCH, types: [type], isStart: false })
  return (focus) => {
    try {
      return isTrue(focus, NO_VARIABLES) === true
    } catch (error) {
      if (error === NOT_PLAIN) return false
      throw error
    }
  }
}

const SEARCH = { isTenants: true, isInner: true, isSearch: true }

/** Values are empty when uncertain. Throws NOT_PLAIN outside the plain subset, UnknownElement for unknown names. */
function compileValues(
  expression: Expression,
  type: string,
): (focus: unknown) => readonly unknown[] {
  const { evaluate } = values(expression, { ...SEARCH, types: [type], isStart: true })
  return (focus) => {
    try {
      return evaluate(focus, NO_VARIABLES)
    } catch (error) {
      if (error === NOT_PLAIN) return []
      throw error
    }
  }
}

const NO_VARIABLES: Variables = { context: undefined, resource: undefined, rootResource: undefined }
