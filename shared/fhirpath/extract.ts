/**
 * Search expressions → plain closures. An expression compiles to legs: one straight walk for each
 * path and each type its last element may have, so that a value arrives with its type known.
 * Data of any wrong shape yields nothing and never throws.
 */
import { elementsOf, isResourceType } from '../fhir/definitions.ts'
import { isObject } from '../fhir/resource.ts'
import { type Expression, parsePath } from './parse.ts'

/** Takes a node and what the values end up in. */
export type Walk<Sink> = (node: unknown, sink: Sink) => void

export interface Leg {
  /** Type of the values: `CodeableConcept`, `dateTime`; a backbone element is `Claim.item`. */
  readonly type: string
  /** Property of the resource that must be there; undefined: values come from the whole. */
  readonly root: string | undefined
  /** A function of the resource that calls `handle` for each value. */
  bind<Sink>(handle: Walk<Sink>): Walk<Sink>
}

/** An expression that names an element which its type has not. */
export class UnknownElement extends Error {}

/** Throws an Error for an expression outside the subset, UnknownElement for what `type` has not. */
export function compileExpression(type: string, expression: string): readonly Leg[] {
  const start: Focus = { type, root: undefined, steps: [] }
  return compile(parsePath(expression), [start]).map((focus) => ({
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

/** What `resolve()` gives: the type named in the reference text; nothing is ever read. */
const RESOLVED = '#resolved'

function bind<Sink>(steps: readonly Step[], handle: Walk<Sink>): Walk<Sink> {
  return steps.reduceRight<Walk<Sink>>((next, step) => step(next), handle)
}

function compile(expression: Expression, foci: readonly Focus[]): readonly Focus[] {
  switch (expression.kind) {
    case 'member': {
      const { of, name } = expression
      if (of === undefined && isRoot(name, foci)) return foci
      return children(of === undefined ? foci : compile(of, foci), name)
    }
    case 'union':
      return expression.parts.flatMap((part) => compile(part, foci))
    case 'index': {
      if (expression.of.kind !== 'member') throw new Error('Only an element can have an index')
      const { of, name } = expression.of
      return children(of === undefined ? foci : compile(of, foci), name, expression.index)
    }
    case 'type':
      return expression.op === 'as'
        ? ofType(compile(expression.of, foci), expression.type)
        : isType(compile(expression.of, foci), expression.type)
    case 'call':
      return call(expression, foci)
    case 'variable':
      throw new Error('Search expressions have no variables')
    case 'binary':
    case 'literal':
      return [computed('boolean', evaluator(expression, foci))]
    default: {
      const never: never = expression
      return never
    }
  }
}

function call(
  expression: Extract<Expression, { kind: 'call' }>,
  context: readonly Focus[],
): readonly Focus[] {
  const { name, args, of } = expression
  const [first, second, third] = args
  if (name === 'iif' && of === undefined && first && second && third) {
    const test = predicate(first, context)
    const [yes, no] = [evaluator(second, context), evaluator(third, context)]
    return [computed('decimal', (node) => (test(node) ? yes(node) : no(node)))]
  }
  const foci = of === undefined ? context : compile(of, context)
  if (name === 'where' && first) return foci.map((focus) => where(focus, first))
  if ((name === 'as' || name === 'ofType') && first) return ofType(foci, nameIn(first))
  if (name === 'is' && first) return isType(foci, nameIn(first))
  if (name === 'resolve') {
    return foci.map((focus) => ({ ...focus, type: RESOLVED, steps: [...focus.steps, resolve] }))
  }
  if (name === 'extension' && first?.kind === 'literal') {
    const url = first.value
    const isWanted = (node: unknown) => isObject(node) && node.url === url
    return children(foci, 'extension').map((focus) => ({
      ...focus,
      steps: [...focus.steps, filter(isWanted)],
    }))
  }
  if (name === 'exists' || name === 'empty') {
    const wanted = name === 'exists'
    const values = collect(foci)
    return [computed('boolean', (node) => [values(node).length > 0 === wanted])]
  }
  throw new Error(`Search expressions have no function "${name}"`)
}

function isRoot(name: string, foci: readonly Focus[]): boolean {
  const isAtStart = foci.every((focus) => focus.steps.length === 0 && isResourceType(focus.type))
  if (!isAtStart) return false
  return name === 'Resource' || name === 'DomainResource' || foci.some((item) => item.type === name)
}

/** Of the types of a choice some may lack the element, but not all. */
function children(foci: readonly Focus[], name: string, index?: number): readonly Focus[] {
  const found = foci.flatMap((focus) => child(focus, name, index))
  if (found.length > 0) return found
  const types = [...new Set(foci.map((focus) => focus.type))].slice(0, 5).join(', ')
  throw new UnknownElement(`${types}: no element "${name}"`)
}

/** The element `name` below a focus; an element of several types is several foci. */
function child(focus: Focus, name: string, index?: number): Focus[] {
  if (focus.type === RESOLVED && name === 'resourceType') return [{ ...focus, type: 'code' }]
  const isStart = focus.steps.length === 0
  return propertiesOf(focus.type, name).map(({ property, type }) => ({
    type,
    root: isStart ? property : focus.root,
    steps: [...focus.steps, index === undefined ? member(property) : memberAt(property, index)],
  }))
}

/** Properties that the element `name` of `Patient.contact` or `HumanName` may be written as. */
export function propertiesOf(parent: string, name: string): { property: string; type: string }[] {
  const [owner = '', ...below] = parent.split('.')
  const prefix = below.map((part) => `${part}.`).join('')
  const elements = elementsOf(owner).filter((element) => element.path.startsWith(prefix))
  for (const element of elements) {
    const own = element.path.slice(prefix.length)
    if (element.choice && (own === name || name.startsWith(own))) {
      const all = element.types.map(({ code }) => ({ property: own + capital(code), type: code }))
      const chosen = own === name ? all : all.filter((item) => item.property === name)
      if (chosen.length > 0) return chosen
    }
    if (own !== name) continue
    if (element.content) return [{ property: name, type: element.content }]
    const [only] = element.types
    const isBackbone = only?.code === 'BackboneElement' || only?.code === 'Element'
    return [{ property: name, type: isBackbone ? `${parent}.${name}` : (only?.code ?? 'string') }]
  }
  return []
}

function capital(code: string): string {
  return code.charAt(0).toUpperCase() + code.slice(1)
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
  const inner: Focus = { type: focus.type, root: undefined, steps: [] }
  return { ...focus, steps: [...focus.steps, filter(predicate(condition, [inner]))] }
}

const resolve: Step = (next) => (node, sink) => {
  const type = referenceType(node)
  if (type !== undefined) next(type, sink)
}

/** Type of a Reference or canonical by its text, else by `Reference.type`. */
function referenceType(node: unknown): string | undefined {
  const text = isObject(node) ? node.reference : node
  if (typeof text === 'string') {
    const match = /(?:^|\/)([A-Z][A-Za-z]+)\/[A-Za-z0-9\-.]{1,64}(?:\/_history\/[^/]+)?$/.exec(text)
    if (match) return match[1]
  }
  return isObject(node) && typeof node.type === 'string' ? node.type : undefined
}

function ofType(foci: readonly Focus[], type: string): readonly Focus[] {
  const wanted = type.toLowerCase()
  const found = foci.filter((focus) => focus.type.toLowerCase() === wanted)
  if (found.length === 0) throw new Error(`No element of type ${type}`)
  return found
}

function isType(foci: readonly Focus[], type: string): readonly Focus[] {
  return foci.map((focus) => {
    const values = collect([focus])
    const isKnown = focus.type === type
    return computed('boolean', (node) =>
      values(node).map((value) => (focus.type === RESOLVED ? value === type : isKnown)),
    )
  })
}

function computed(type: string, values: (node: unknown) => readonly unknown[]): Focus {
  const step: Step = (next) => (node, sink) => {
    for (const value of values(node)) next(value, sink)
  }
  return { type, root: undefined, steps: [step] }
}

function collect(foci: readonly Focus[]): (node: unknown) => unknown[] {
  const walks = foci.map((focus) =>
    bind<unknown[]>(focus.steps, (value, found) => {
      found.push(value)
    }),
  )
  return (node) => {
    const found: unknown[] = []
    for (const walk of walks) walk(node, found)
    return found
  }
}

function predicate(expression: Expression, foci: readonly Focus[]): (node: unknown) => boolean {
  const values = evaluator(expression, foci)
  return (node) => values(node)[0] === true
}

function evaluator(
  expression: Expression,
  foci: readonly Focus[],
): (node: unknown) => readonly unknown[] {
  if (expression.kind === 'literal') {
    const constant = [expression.value]
    return () => constant
  }
  if (expression.kind !== 'binary') return collect(compile(expression, foci))
  const { op } = expression
  const left = evaluator(expression.left, foci)
  const right = evaluator(expression.right, foci)
  if (op === 'and') return (node) => [left(node)[0] === true && right(node)[0] === true]
  if (op === 'or') return (node) => [left(node)[0] === true || right(node)[0] === true]
  if (op !== '=' && op !== '!=') throw new Error(`Search expressions have no operator "${op}"`)
  return (node) => {
    const [a, b] = [left(node), right(node)]
    if (a.length === 0 || b.length === 0) return []
    const isEqual = a.length === b.length && a.every((value, i) => value === b[i])
    return [isEqual === (op === '=')]
  }
}

function nameIn(expression: Expression): string {
  if (expression.kind === 'member' && expression.of === undefined) return expression.name
  throw new Error('A type name is needed')
}
