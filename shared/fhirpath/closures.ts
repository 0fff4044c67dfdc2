/**
 * Compiles the FHIRPath of invariants and search conditions to closures, much faster than the engine. Throws
 * NOT_PLAIN where they cannot decide. https://hl7.org/fhirpath/N1/; `undefined` is the empty collection.
 */
import { toNumber } from '../fhir/json.ts'
import { isObject } from '../fhir/resource.ts'
import {
  type Child,
  type Compiled,
  childElements,
  childTypes,
  collect,
  type Evaluate,
  FOLLOWED,
  isConstant,
  isResourceRoot,
  LOGIC,
  onceFor,
  presence,
  RESOLVED,
  referenceType,
  singleton,
  TESTS,
  type Truth,
  UnknownElement,
  type Variables,
} from './members.ts'
import { type Binary, type Call, type Expression, memberPath, parsePath } from './parse.ts'
import { COMPARISONS, intersection, isMember, isSubtype, NO_VALUE, NOT_PLAIN } from './values.ts'

/** Throws NOT_PLAIN, here or when called. Tenant expressions must not multiply work: no unions or sums. */
export function compilePlain(expression: string, type: string, isTenants: boolean): Truth {
  const context = { types: [type], isStart: true, isTenants, isInner: false, isSearch: false }
  return truth(parse(expression), context)
}

interface Context {
  /** Possible types of the focus; any resource when undefined. */
  readonly types: readonly string[] | undefined
  readonly isStart: boolean
  readonly isTenants: boolean
  /** True within function criteria, which run once per item. */
  readonly isInner: boolean
  /** Names must exist, `resolve()` yields a type, and elements without a value are absent. */
  readonly isSearch: boolean
}

function parse(expression: string): Expression {
  try {
    return parsePath(expression)
  } catch {
    throw NOT_PLAIN
  }
}

export function truth(expression: Expression, context: Context): Truth {
  if (expression.kind === 'binary') {
    const connect = LOGIC.get(expression.op)
    if (connect !== undefined) {
      return connect(truth(expression.left, context), truth(expression.right, context))
    }
    return comparison(expression, context)
  }
  if (expression.kind === 'type' && expression.op === 'is') {
    return isOfType(expression.of, expression.type, context)
  }
  if (expression.kind === 'call') {
    const known = truthOfCall(expression, context)
    if (known !== undefined) return known
  }
  const { evaluate } = values(expression, context)
  return (focus, variables) => singleton(evaluate(focus, variables))
}

function comparison({ op, left, right }: Binary, context: Context): Truth {
  const a = values(left, context).evaluate
  const b = values(right, context).evaluate
  if (op === 'in') {
    const all = isConstant(right) ? onceFor(b) : b
    return (focus, variables) => isMember(a(focus, variables), all(focus, variables))
  }
  if (op === 'contains') {
    const all = isConstant(left) ? onceFor(a) : a
    return (focus, variables) => isMember(b(focus, variables), all(focus, variables))
  }
  const compare = COMPARISONS.get(op)
  if (compare === undefined) throw NOT_PLAIN
  return (focus, variables) => {
    const [one, two] = [a(focus, variables), b(focus, variables)]
    if (one.length === 0 || two.length === 0) return undefined
    if (one.length > 1 || two.length > 1) throw NOT_PLAIN
    return compare(one[0], two[0])
  }
}

function truthOfCall({ name, of, args }: Call, context: Context): Truth | undefined {
  if (name === 'not') {
    const inner = of === undefined ? undefined : truth(of, context)
    if (inner === undefined) throw NOT_PLAIN
    return (focus, variables) => {
      const value = inner(focus, variables)
      return value === undefined ? undefined : !value
    }
  }
  const test = TESTS.get(name)
  const [first] = args
  if (name === 'is' && of !== undefined && first?.kind === 'member' && first.of === undefined) {
    return isOfType(of, first.name, context)
  }
  if ((name === 'exists' || name === 'empty') && first === undefined) {
    const path = of && memberPath(of)
    if (path !== undefined && !context.isSearch && !isRoot(path[0] ?? '', context)) {
      const isThere = presence(path, context.types)
      const wanted = name === 'exists'
      return (focus) => isThere(focus) === wanted
    }
  }
  if (test !== undefined && first === undefined) {
    const { evaluate } = source(of, context)
    return (focus, variables) => test(evaluate(focus, variables))
  }
  if ((name === 'exists' || name === 'all') && first !== undefined) {
    const { evaluate, types } = source(of, context)
    const criteria = truth(first, inner(context, types))
    return name === 'exists'
      ? (focus, variables) =>
          evaluate(focus, variables).some((item) => criteria(item, variables) === true)
      : (focus, variables) =>
          evaluate(focus, variables).every((item) => criteria(item, variables) === true)
  }
  if ((name === 'startsWith' || name === 'contains') && first?.kind === 'literal') {
    const part = String(first.value)
    const { evaluate } = source(of, context)
    const isTrue = (text: string) =>
      name === 'startsWith' ? text.startsWith(part) : text.includes(part)
    return (focus, variables) => {
      const [text, ...more] = evaluate(focus, variables)
      if (text === undefined || text === NO_VALUE) return undefined
      if (typeof text !== 'string' || more.length > 0) throw NOT_PLAIN
      return isTrue(text)
    }
  }
  return undefined
}

/**
 * Tests the type of an element. For an empty operand an invariant yields false, as the published validator does
 * (ras-2 without a probability); a search yields empty.
 */
function isOfType(of: Expression, wanted: string, context: Context): Truth {
  const { evaluate, types = [] } = values(of, context)
  const [type] = types
  const ofNothing = context.isSearch ? undefined : false
  if (type === undefined) throw NOT_PLAIN
  if (types.length === 1) {
    const isKind = isSubtype(type, wanted)
    if (type === RESOLVED && of.kind === 'call' && of.of === undefined) {
      // Fast path: most search conditions have this form and run on every write.
      return (focus) => {
        const target = referenceType(focus)
        return target === undefined ? ofNothing : target === wanted
      }
    }
    return (focus, variables) => {
      const found = evaluate(focus, variables)
      if (found.length > 1) throw NOT_PLAIN
      if (found.length === 0) return ofNothing
      return type === RESOLVED ? found[0] === wanted : isKind
    }
  }
  const { select } = ofType(of, wanted, context)
  return (focus, variables) => {
    const { all, fitting } = select(focus, variables)
    return all.length === 0 ? ofNothing : fitting.length === 1
  }
}

function ofType(of: Expression, wanted: string, context: Context) {
  if (of.kind !== 'member') throw NOT_PLAIN
  const parent = source(of.of, context)
  const children = propertiesIn(parent.types, of.name, context)
  const ofWanted = children.filter(({ type }) => type && isSubtype(type, wanted))
  const select = (focus: unknown, variables: Variables) => {
    const [all, fitting]: [unknown[], unknown[]] = [[], []]
    for (const item of parent.evaluate(focus, variables)) {
      collect(item, children, all)
      collect(item, ofWanted, fitting)
    }
    if (all.length > 1) throw NOT_PLAIN
    return { all, fitting }
  }
  return { select, types: childTypes(ofWanted) }
}

function source(of: Expression | undefined, context: Context): Compiled {
  if (of !== undefined) return values(of, context)
  return { evaluate: (focus) => [focus], types: context.types }
}

function inner(context: Context, types: readonly string[] | undefined): Context {
  return { ...context, types, isStart: false, isInner: true }
}

export function values(expression: Expression, context: Context): Compiled {
  switch (expression.kind) {
    case 'literal': {
      const constant = [expression.value]
      return { evaluate: () => constant, types: [] }
    }
    case 'variable':
      return variable(expression.name, context)
    case 'member':
      return member(expression.of, expression.name, context)
    case 'union':
      return union(expression.parts, context)
    case 'call':
      return call(expression, context)
    case 'binary': {
      if (expression.op === '+' || expression.op === '&') return sum(expression, context)
      return boolean(truth(expression, context))
    }
    case 'type':
      if (expression.op === 'is') return boolean(truth(expression, context))
      return asType(expression.of, expression.type, context)
    case 'index':
      throw NOT_PLAIN
    default:
      return expression satisfies never
  }
}

/** `(value as Quantity)`; search expressions compile it in extract.ts. */
function asType(of: Expression, wanted: string, context: Context): Compiled {
  if (context.isSearch) throw NOT_PLAIN
  const { select, types } = ofType(of, wanted, context)
  return { evaluate: (...given) => select(...given).fitting, types }
}

function boolean(isTrue: Truth): Compiled {
  const evaluate: Evaluate = (focus, variables) => {
    const value = isTrue(focus, variables)
    return value === undefined ? [] : [value]
  }
  return { evaluate, types: [] }
}

const UCUM = ['http://unitsofmeasure.org']

function variable(name: string, { types, isTenants, isInner }: Context): Compiled {
  if (name === 'this') return { evaluate: (focus) => [focus], types }
  if (name === 'ucum') return { evaluate: () => UCUM, types: [] }
  if (isTenants && isInner) throw NOT_PLAIN
  if (name !== 'resource' && name !== 'context' && name !== 'rootResource') throw NOT_PLAIN
  return { evaluate: (_, variables) => [variables[name]], types: undefined }
}

function member(of: Expression | undefined, name: string, context: Context): Compiled {
  if (of === undefined && isRoot(name, context)) {
    return { evaluate: (focus) => [focus], types: context.types }
  }
  const parent = of === undefined ? undefined : values(of, context)
  const properties = propertiesIn(
    parent === undefined ? context.types : parent.types,
    name,
    context,
  )
  const types = childTypes(properties)
  const evaluate: Evaluate = (focus, variables) => {
    const found: unknown[] = []
    if (parent === undefined) collect(focus, properties, found)
    else for (const item of parent.evaluate(focus, variables)) collect(item, properties, found)
    return found
  }
  return { evaluate, types }
}

function isRoot(name: string, { isStart, types }: Context): boolean {
  return isStart && types?.some((type) => isResourceRoot(type, name)) === true
}

function propertiesIn(
  types: readonly string[] | undefined,
  name: string,
  { isSearch }: Context,
): readonly Child[] {
  const found = childElements(types, name)
  if (!isSearch) return found
  if (found.length === 0) throw new UnknownElement(`${types?.join(', ')}: no element "${name}"`)
  return found.map((child) => ({ ...child, isPrimitive: false }))
}

function union(parts: readonly Expression[], context: Context): Compiled {
  if (context.isTenants && parts.some(({ kind }) => kind !== 'literal')) throw NOT_PLAIN
  const compiled = parts.map((part) => values(part, context))
  const evaluate: Evaluate = (focus, variables) =>
    compiled.flatMap((part) => part.evaluate(focus, variables))
  const isKnown = compiled.every(({ types }) => types !== undefined)
  return { evaluate, types: isKnown ? compiled.flatMap(({ types }) => types ?? []) : undefined }
}

function sum({ op, left, right }: Binary, context: Context): Compiled {
  if (context.isTenants) throw NOT_PLAIN
  const a = values(left, context).evaluate
  const b = values(right, context).evaluate
  const evaluate: Evaluate = (focus, variables) => {
    const [one, two] = [a(focus, variables), b(focus, variables)]
    if (one.length > 1 || two.length > 1) throw NOT_PLAIN
    if (op === '&') return [requireString(one[0]) + requireString(two[0])]
    const [x, y] = [toNumber(one[0]), toNumber(two[0])]
    if (x === undefined || y === undefined) throw NOT_PLAIN
    return [x + y]
  }
  return { evaluate, types: [] }
}

function iif({ of, args }: Call, context: Context): Compiled {
  const [test, one, other] = args
  if (of !== undefined || test === undefined || one === undefined) throw NOT_PLAIN
  const isTrue = truth(test, context)
  const yes = values(one, context)
  const no = other === undefined ? undefined : values(other, context)
  return {
    evaluate: (focus, variables) =>
      isTrue(focus, variables) === true
        ? yes.evaluate(focus, variables)
        : (no?.evaluate(focus, variables) ?? []),
    types: yes.types && no?.types && [...yes.types, ...no.types],
  }
}

function requireString(value: unknown): string {
  if (value === undefined || value === NO_VALUE) return ''
  if (typeof value === 'string') return value
  throw NOT_PLAIN
}

function call(expression: Call, context: Context): Compiled {
  const { name, of, args } = expression
  const known = truthOfCall(expression, context)
  if (known !== undefined) return boolean(known)
  const { evaluate, types } = source(of, context)
  const [first] = args
  const followed = FOLLOWED.get(name)
  if (followed !== undefined && (!context.isTenants || name !== 'descendants')) {
    if (name === 'resolve' && !context.isSearch) throw NOT_PLAIN
    return followed({ evaluate, types })
  }
  switch (name) {
    case 'iif':
      return iif(expression, context)
    case 'extension': {
      if (first?.kind !== 'literal') throw NOT_PLAIN
      const all = member(of, 'extension', context)
      return {
        evaluate: (focus, variables) =>
          all
            .evaluate(focus, variables)
            .filter((item) => isObject(item) && item.url === first.value),
        types: all.types,
      }
    }
    case 'where': {
      if (first === undefined) throw NOT_PLAIN
      const criteria = truth(first, inner(context, types))
      const matching: Evaluate = (focus, variables) =>
        evaluate(focus, variables).filter((item) => criteria(item, variables) === true)
      return { evaluate: matching, types }
    }
    case 'select': {
      if (first === undefined) throw NOT_PLAIN
      const selected = values(first, inner(context, types))
      const all: Evaluate = (focus, variables) =>
        evaluate(focus, variables).flatMap((item) => selected.evaluate(item, variables))
      return { evaluate: all, types: selected.types }
    }
    case 'combine':
      if (first === undefined) throw NOT_PLAIN
      return union([...(of === undefined ? [] : [of]), first], context)
    case 'intersect': {
      if (first === undefined || context.isTenants) throw NOT_PLAIN
      const others = values(first, context).evaluate
      const common: Evaluate = (focus, variables) =>
        intersection(evaluate(focus, variables), others(focus, variables))
      return { evaluate: common, types }
    }
    default:
      throw NOT_PLAIN
  }
}
