/**
 * FHIRPath evaluation (http://hl7.org/fhirpath/N1, https://hl7.org/fhir/R4/fhirpath.html): synchronous, without I/O
 * or changes of the node. Tenant expressions: custom.ts. Errors: HttpError 400 for an invalid expression.
 */

import type { OptionVariants, ResourceNode } from 'fhirpath'
import { Cache, getOrInsert } from '../core/cache.ts'
import { badRequest, HttpError, tooCostly } from '../core/errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import { openOnce } from '../fhir/definitions-data.ts'
import { isDecimal } from '../fhir/json.ts'
import { isPrimitive } from '../fhir/primitives.ts'
import { isObject } from '../fhir/resource.ts'
import { engine, functions } from './engine.ts'

/** `%name` → value or array of values; undefined and `[]` are the empty collection. */
type Variables = Readonly<Record<string, unknown>>

export type CompiledPath = (node: unknown, variables?: Variables) => unknown[]

/** False when the invariant yields false or nothing. http://hl7.org/fhirpath/N1/#singleton-evaluation-of-collections */
export function holds(path: CompiledPath, node: unknown, variables?: Variables): boolean {
  const [first] = path(node, variables)
  return first !== undefined && first !== false
}

/** Compiles an expression. `base` is the type of a node that is not a resource ("Patient.contact", "HumanName"). */
export function compile(expression: string, base?: string): CompiledPath {
  const run = compileNodes(expression, base)
  return (node, variables) => nodeValues(run(node, variables))
}

type RunOptions = Pick<OptionVariants, 'debugger'>

/** Values of the engine; elements keep the place they were found at. */
export type Nodes = readonly unknown[]

export type NodePath = (node: unknown, variables?: Variables, options?: RunOptions) => Nodes

/** Caches compiled expressions by text, bounded by total expression length in characters. */
export function createPathCache(name: string, maxLength: number): PathCache {
  return new Cache<string, NodePath>({ name, max: maxLength, size: (_path, key) => key.length })
}

type PathCache = Cache<string, NodePath>

const own = createPathCache('fhirpath', 300_000)

export function compileNodes(expression: string, base = '', cache = own): NodePath {
  return getOrInsert(cache, `${base}\n${expression}`, () => make(expression, base))
}

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

/** True for an element of the data, false for computed values. */
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
    // The default trace() prints to the console.
    traceFn: () => {},
  }
  const text = adaptGrammar(expression)
  const constants = fhirConstants(expression)
  try {
    const { fhirpath, r4 } = engine()
    // The engine fails on primitives with a base: wrap them in a choice property, which gives their type.
    const holder = isPrimitive(base) && base !== 'xhtml' ? choiceProperty(base) : undefined
    const of =
      holder === undefined
        ? { base, expression: text }
        : { base: 'Extension', expression: `value.select(${text})` }
    // Both are slow to compile, so the one that this base rarely needs waits for its first use.
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
        // The engine's own %context is the typed node.
        if (all.context === own && holder === undefined) delete all.context
        return withoutWarnings(() => run(data, all, runOptions))
      } catch (error) {
        throw failed('could not be evaluated', error)
      }
    }
  } catch (error) {
    throw failed('is invalid', error)
  }
}

function choiceProperty(type: string): string {
  return `value${type.charAt(0).toUpperCase()}${type.slice(1)}`
}

/** Suppresses the engine's console warnings, which quote data. */
export function withoutWarnings<T>(run: () => T): T {
  const { warn } = console
  console.warn = () => {}
  try {
    return run()
  } finally {
    console.warn = warn
  }
}

/** How V8 names a stack, array, string or integer that is too large. */
const TOO_LARGE = /^(?:Maximum .* exceeded|Invalid (?:array|string) length)/

/** Turns engine errors into 400; quoted data is removed. */
function failed(what: string, error: unknown): HttpError {
  if (error instanceof HttpError) return error
  if (error instanceof RangeError && TOO_LARGE.test(error.message))
    return tooCostly('A FHIRPath expression makes too much')
  const why = String(error instanceof Error ? error.message : error)
    .replace(/[[{].*/s, '')
    .slice(0, 200)
    .trim()
  return badRequest(`FHIRPath expression ${what}: ${why}`)
}

/** Adapts published expressions to the grammar: `as` on collections becomes `ofType`, `div` is quoted. */
function adaptGrammar(expression: string): string {
  return expression.replace(
    /'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`|\/\*[\s\S]*?\*\/|\/\/.*|(?<=[\w)\]`])\s+as\s+([\w.`]+)|\.as(?=\s*\()|\.div\b/g,
    (found, type?: string) => {
      if (type !== undefined) return `.ofType(${type})`
      if (found === '.div') return '.`div`'
      return found === '.as' ? '.ofType' : found
    },
  )
}

/** FHIR constants used in an expression. https://hl7.org/fhir/R4/fhirpath.html#variables */
function fhirConstants(expression: string): Variables {
  const constants: Record<string, string | undefined> = {
    // The engine's objects of these names create instances and call servers.
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

// Cached by value, so that a resource is walked once for all its expressions.
const plainBySource = new WeakMap<object, unknown>()
const sourceByPlain = new WeakMap<object, unknown>()

/** Copies the value without Decimals; returns the same value when it has none. */
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

/** Returns the original of a value from the engine, with its Decimals. */
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
