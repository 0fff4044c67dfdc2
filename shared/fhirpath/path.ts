/**
 * FHIRPath (http://hl7.org/fhirpath/N1, with the additions of https://hl7.org/fhir/R4/fhirpath.html).
 * Everything that evaluates an expression comes through here:
 *
 * - `evaluate(expression, node, variables?)` for one of ours on one node: the values it selects;
 * - `compile(expression, base?)` for one that is used again: a function `(node, variables?) => values`,
 *   where `base` is the path of the node's type ("Patient.contact", "HumanName") if it is no resource;
 * - `holds(path, node, variables?)` for an invariant: what yields nothing fails;
 * - `compileTenant` and `withinLimits` of custom.ts for an expression that a tenant wrote.
 *
 * A node is a resource, an element or an array of them, as parsed by json.ts; values are JSON, elements
 * those of the resource itself, dates and quantities texts. Evaluation is synchronous, reads nothing
 * and leaves the node as it is. Errors: HttpError 400, for whatever is wrong with the expression.
 */

import type { OptionVariants, ResourceNode } from 'fhirpath'
import { Cache } from '../core/cache.ts'
import { badRequest, HttpError } from '../core/errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import { openOnce } from '../fhir/definitions-data.ts'
import { isDecimal } from '../fhir/json.ts'
import { isPrimitive } from '../fhir/primitives.ts'
import { isObject } from '../fhir/resource.ts'
import { engine, functions } from './engine.ts'

/**
 * `%name` → value or array of values; undefined and `[]` are the empty collection. `%resource` and
 * `%rootResource` are the node itself when it is a resource.
 */
export type Variables = Readonly<Record<string, unknown>>

export type CompiledPath = (node: unknown, variables?: Variables) => unknown[]

/** The values that an expression selects in a node. */
export function evaluate(expression: string, node: unknown, variables?: Variables): unknown[] {
  return compile(expression)(node, variables)
}

/** False where the invariant says false or nothing. http://hl7.org/fhirpath/N1/#singleton-evaluation-of-collections */
export function holds(path: CompiledPath, node: unknown, variables?: Variables): boolean {
  const [first] = path(node, variables)
  return first !== undefined && first !== false
}

/** An expression as a function. `base` is the type of the nodes that are no resources, if known. */
export function compile(expression: string, base?: string): CompiledPath {
  const run = compileNodes(expression, base)
  return (node, variables) => nodeValues(run(node, variables))
}

/** How one evaluation differs from others of the same expression. */
export type RunOptions = Pick<OptionVariants, 'debugger'>

/** Values of the engine, elements with the place where they were found. */
export type Nodes = readonly unknown[]

export type NodePath = (node: unknown, variables?: Variables, options?: RunOptions) => Nodes

/** Compiled expressions by their text, up to so many characters of it: some 0.1 kB each, 0.5 at worst. */
export function createPathCache(name: string, maxLength: number): PathCache {
  return new Cache<string, NodePath>({ name, max: maxLength, size: (_path, key) => key.length })
}

type PathCache = Cache<string, NodePath>

const own = createPathCache('fhirpath', 300_000)

/** As `compile`, for callers that need the places of the elements. */
export function compileNodes(expression: string, base = '', cache = own): NodePath {
  const key = `${base}\n${expression}`
  const known = cache.get(key)
  if (known !== undefined) return known
  const made = make(expression, base)
  cache.set(key, made)
  return made
}

/** JSON of what the engine answers. */
export function nodeValues(nodes: Nodes): unknown[] {
  const values: unknown[] = []
  for (const node of nodes) {
    const value: unknown = engine().fhirpath.util.valData(node)
    if (value === null || value === undefined || typeof value === 'function') continue
    if (typeof value === 'bigint') values.push(String(value))
    else if (typeof value !== 'object') values.push(value)
    else values.push(hasToJson(value) ? value.toJSON() : findSource(value))
  }
  return values
}

/** True for an element of the data; computed values are none. */
export function isNode(value: unknown): value is ResourceNode {
  return isObject(value) && 'parentResNode' in value && 'data' in value
}

function hasToJson(value: object): value is { toJSON(): unknown } {
  return 'toJSON' in value && typeof value.toJSON === 'function'
}

function make(expression: string, base: string): NodePath {
  const options = {
    resolveInternalTypes: false,
    userInvocationTable: functions,
    // Otherwise trace() prints what it sees.
    traceFn: () => {},
  }
  const text = adapted(expression)
  const constants = fhirConstants(expression)
  try {
    const { fhirpath, r4 } = engine()
    // With a base the engine fails on primitives: their type is that of the element they are held by.
    const holder = isPrimitive(base) && base !== 'xhtml' ? choiceProperty(base) : undefined
    const of =
      holder === undefined
        ? { base, expression: text }
        : { base: 'Extension', expression: `value.select(${text})` }
    // Each takes as long as the other, so the one that this base will hardly need waits.
    const forResources = openOnce(() => fhirpath.compile(text, r4, options))
    const forElements = openOnce(() => fhirpath.compile(of, r4, options))
    const isElement = base !== '' && !isResourceType(base)
    if (isElement) forElements()
    else forResources()
    return (node, variables, runOptions) => {
      const own = plain(node)
      const data = holder === undefined || isObject(own) ? own : { [holder]: own }
      const isResource = isObject(data) && data.resourceType !== undefined
      const itself = isResource ? { resource: data, rootResource: data } : undefined
      const run = base === '' || isResource || !isObject(data) ? forResources() : forElements()
      try {
        const all: Record<string, unknown> = Object.assign({}, constants, itself, plain(variables))
        // The engine's own %context is the node with its type.
        if (all.context === own && holder === undefined) delete all.context
        return quietly(() => run(data, all, runOptions))
      } catch (error) {
        throw failed('could not be evaluated', error)
      }
    }
  } catch (error) {
    throw failed('is invalid', error)
  }
}

/** `valueDateTime` */
function choiceProperty(type: string): string {
  return `value${type.charAt(0).toUpperCase()}${type.slice(1)}`
}

/** Runs without the engine's warnings on the console, which quote the data. */
export function quietly<T>(run: () => T): T {
  const { warn } = console
  console.warn = () => {}
  try {
    return run()
  } finally {
    console.warn = warn
  }
}

/** Engine errors become the caller's; values of the data that they quote are left out. */
function failed(what: string, error: unknown): HttpError {
  if (error instanceof HttpError) return error
  const why = String(error instanceof Error ? error.message : error)
    .replace(/[[{].*/s, '')
    .slice(0, 200)
    .trim()
  return badRequest(`FHIRPath expression ${what}: ${why}`)
}

/**
 * Adapts what published expressions write otherwise than the grammar has it: `as` on collections, where it
 * means `ofType`, and the element `div`, which is a word of the language. Texts, comments and quoted
 * names stay.
 */
function adapted(expression: string): string {
  return expression.replace(
    /'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`|\/\*[\s\S]*?\*\/|\/\/.*|(?<=[\w)\]`])\s+as\s+([\w.`]+)|\.as(?=\s*\()|\.div\b/g,
    (found, type?: string) => {
      if (type !== undefined) return `.ofType(${type})`
      if (found === '.div') return '.`div`'
      return found === '.as' ? '.ofType' : found
    },
  )
}

/** The constants of FHIR that an expression uses. https://hl7.org/fhir/R4/fhirpath.html#variables */
function fhirConstants(expression: string): Variables {
  const constants: Record<string, string | undefined> = {
    // The engine's objects of these names make instances and ask servers.
    factory: undefined,
    terminologies: undefined,
    sct: 'http://snomed.info/sct',
    loinc: 'http://loinc.org',
  }
  for (const [, kind, name] of expression.matchAll(/%[`'"]?(vs|ext)-([\w.-]+)/g)) {
    const folder = kind === 'vs' ? 'ValueSet' : 'StructureDefinition'
    constants[`${kind}-${name}`] = `http://hl7.org/fhir/${folder}/${name}`
  }
  return constants
}

// These maps remember what a value became, so that a resource is walked once for all expressions on it.
const plainBySource = new WeakMap<object, unknown>()
const sourceByPlain = new WeakMap<object, unknown>()

/** The same value when no Decimal is in it, otherwise a copy without any. */
export function plain(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value
  if (isDecimal(value)) return value.valueOf()
  const known = plainBySource.get(value)
  if (known !== undefined) return known
  const copy = Array.isArray(value) ? plainItems(value) : plainMembers(value)
  plainBySource.set(value, copy)
  if (copy !== value) {
    plainBySource.set(copy, copy)
    sourceByPlain.set(copy, value)
  }
  return copy
}

/** The value that `plain` was given, Decimals and all, for one that came out of the engine. */
function findSource(value: unknown): unknown {
  return typeof value === 'object' && value !== null ? (sourceByPlain.get(value) ?? value) : value
}

function plainItems(items: readonly unknown[]): readonly unknown[] {
  const copies = items.map(plain)
  return copies.some((copy, index) => copy !== items[index]) ? copies : items
}

function plainMembers(value: object): object {
  const entries = Object.entries(value)
  const copies = entries.map(([key, member]) => [key, plain(member)] as const)
  const isSame = copies.every(([, copy], index) => copy === entries[index]?.[1])
  return isSame ? value : Object.fromEntries(copies)
}
