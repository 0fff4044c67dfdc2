/**
 * A subset of JSON Schema 2020-12 (https://json-schema.org/draft/2020-12) for schemas of tenants: no references, no
 * generated code, and patterns that match in linear time. Keywords outside the subset are rejected, not ignored.
 */
import { isDeepStrictEqual } from 'node:util'
import { RE2JS, RE2JSException } from 're2js'

interface SchemaProblem {
  /** JSON Pointer into the schema or the value; empty for its root. */
  readonly at: string
  readonly text: string
}

type Parts = Readonly<Record<string, unknown>>

interface Keyword {
  /** Returns the rule for its value; undefined if it is right. */
  readonly rule: (operand: unknown, size: SchemaSize) => string | undefined
  /** True for a right value of the caller. The operand keeps the rule. */
  readonly accepts: (operand: unknown, value: unknown, budget: Budget) => boolean
  /** Returns the rule for a wrong value. */
  readonly text: (operand: unknown, value: unknown) => string
}

/** Counts up while a schema is read. */
interface SchemaSize {
  instructions: number
}

/** Counts down while a value is checked. */
interface Budget {
  steps: number
  readonly patterns: Map<string, RE2JS>
}

const MOST_DEPTH = 32
/** About 0.5 µs each: a schema node for a value, or the work of a keyword that takes longer. */
const MOST_STEPS = 100_000
const MOST_PROBLEMS = 5
const MOST_PATTERN = 200
/** The limit for all patterns of a schema: compiling so many takes some 50 ms. */
const MOST_INSTRUCTIONS = 2000
/** A step has so many: characters times instructions of a pattern, values of a list, characters of JSON and texts. */
const PER_STEP = { matched: 100, listed: 25, written: 50, counted: 500 }
/** They describe; so does `format`, by default. */
const ANNOTATIONS = new Set([
  '$schema',
  '$comment',
  'title',
  'description',
  'default',
  'examples',
  'format',
  'deprecated',
  'readOnly',
  'writeOnly',
])
const TYPES: Readonly<Record<string, (value: unknown) => boolean>> = {
  array: isList,
  boolean: (value) => typeof value === 'boolean',
  integer: Number.isInteger,
  null: (value) => value === null,
  number: (value) => typeof value === 'number',
  object: isParts,
  string: (value) => typeof value === 'string',
}

function isParts(value: unknown): value is Parts {
  return typeof value === 'object' && value !== null && !isList(value)
}

function isList(value: unknown): value is readonly unknown[] {
  return Array.isArray(value)
}

const must = (isRight: boolean, text: string) => (isRight ? undefined : `must ${text}`)
const isCount = (operand: unknown) =>
  must(Number.isSafeInteger(operand) && Number(operand) >= 0, 'be a whole number of 0 or more')
const isNumber = (operand: unknown) => must(typeof operand === 'number', 'be a number')
const isNames = (operand: unknown) =>
  must(isList(operand) && operand.every((name) => typeof name === 'string'), 'be a list of names')

/** A limit on the size of lists, objects, texts or numbers; `measure` is undefined for other values. */
const limit = (
  rule: Keyword['rule'],
  measure: (value: unknown) => number | undefined,
  isWithin: (size: number, most: number) => boolean,
  text: string,
): Keyword => ({
  rule,
  accepts(operand, value) {
    const size = measure(value)
    return size === undefined || isWithin(size, Number(operand))
  },
  text: (operand) => `${text} ${operand}`,
})
const atLeast = (size: number, least: number) => size >= least
const atMost = (size: number, most: number) => size <= most
const amount = (value: unknown) => (typeof value === 'number' ? value : undefined)
const entries = (value: unknown) => (isList(value) ? value.length : undefined)
const members = (value: unknown) => (isParts(value) ? Object.keys(value).length : undefined)
/** In code points, as the standard counts. */
const characters = (value: unknown) => (typeof value === 'string' ? [...value].length : undefined)
/** 0.3 is a multiple of 0.1, which floating point numbers do not show. */
const isMultiple = (size: number, of: number) =>
  Math.abs(size / of - Math.round(size / of)) < 1e-9 * Math.max(1, Math.abs(size / of))
const missing = (operand: unknown, value: unknown) =>
  isList(operand) && isParts(value)
    ? operand.map(String).filter((name) => !Object.hasOwn(value, name))
    : []

const KEYWORDS: Readonly<Record<string, Keyword>> = {
  type: {
    rule: (operand) =>
      must(
        [operand].flat().length > 0 &&
          [operand].flat().every((name) => Object.hasOwn(TYPES, String(name))),
        `be one or more of ${Object.keys(TYPES).join(', ')}`,
      ),
    accepts: (operand, value) =>
      [operand].flat().some((name) => TYPES[String(name)]?.(value) === true),
    text: (operand) => `be of type ${[operand].flat().join(' or ')}`,
  },
  enum: {
    rule: (operand) => must(isList(operand) && operand.length > 0, 'be a list of values'),
    accepts: (operand, value) =>
      isList(operand) && operand.some((one) => isDeepStrictEqual(one, value)),
    text: (operand) => `be one of ${JSON.stringify(operand)}`,
  },
  const: {
    rule: () => undefined,
    accepts: (operand, value) => isDeepStrictEqual(operand, value),
    text: (operand) => `be ${JSON.stringify(operand)}`,
  },
  required: {
    rule: isNames,
    accepts: (operand, value) => missing(operand, value).length === 0,
    text: (operand, value) => `have ${missing(operand, value).join(', ')}`,
  },
  uniqueItems: {
    rule: (operand) => must(typeof operand === 'boolean', 'be true or false'),
    accepts(operand, value, budget) {
      if (operand !== true || !isList(value)) return true
      const texts = value.map((item) => JSON.stringify(sorted(item)))
      const written = texts.reduce((sum, { length }) => sum + length, 0)
      budget.steps -= written / PER_STEP.written
      return new Set(texts).size === value.length
    },
    text: () => 'have no equal items',
  },
  pattern: {
    rule(operand, size) {
      if (typeof operand !== 'string') return 'must be a regular expression'
      if (operand.length > MOST_PATTERN) return `must have at most ${MOST_PATTERN} characters`
      try {
        size.instructions += RE2JS.compile(operand).programSize()
      } catch (error) {
        if (!(error instanceof RE2JSException)) throw error
        return `must be a regular expression: ${error.message}`
      }
      const isSmall = size.instructions <= MOST_INSTRUCTIONS
      return must(isSmall, 'be simpler: the patterns of a schema together are too large')
    },
    accepts(operand, value, budget) {
      if (typeof value !== 'string') return true
      const pattern = compiled(String(operand), budget)
      budget.steps -= (value.length * pattern.programSize()) / PER_STEP.matched
      return budget.steps <= 0 || pattern.matcher(value).find()
    },
    text: (operand) => `match ${operand}`,
  },
  minProperties: limit(isCount, members, atLeast, 'have at least, in members,'),
  maxProperties: limit(isCount, members, atMost, 'have at most, in members,'),
  minItems: limit(isCount, entries, atLeast, 'have at least, in items,'),
  maxItems: limit(isCount, entries, atMost, 'have at most, in items,'),
  minLength: limit(isCount, characters, atLeast, 'have at least, in characters,'),
  maxLength: limit(isCount, characters, atMost, 'have at most, in characters,'),
  minimum: limit(isNumber, amount, atLeast, 'be at least'),
  maximum: limit(isNumber, amount, atMost, 'be at most'),
  exclusiveMinimum: limit(isNumber, amount, (size, least) => size > least, 'be above'),
  exclusiveMaximum: limit(isNumber, amount, (size, most) => size < most, 'be below'),
  multipleOf: limit(
    (operand) => must(typeof operand === 'number' && operand > 0, 'be a number above 0'),
    amount,
    isMultiple,
    'be a multiple of',
  ),
}

function compiled(pattern: string, budget: Budget): RE2JS {
  const known = budget.patterns.get(pattern)
  if (known !== undefined) return known
  const made = RE2JS.compile(pattern)
  budget.steps -= made.programSize()
  budget.patterns.set(pattern, made)
  return made
}

function sorted(value: unknown): unknown {
  if (isList(value)) return value.map(sorted)
  if (!isParts(value)) return value
  const names = Object.keys(value).sort()
  return names.map((name) => [name, sorted(value[name])])
}

/** Keywords whose value is a schema, a list of schemas, or schemas by name. */
const ONE = ['items', 'additionalProperties']
const SEVERAL = ['anyOf', 'oneOf', 'allOf']
const BY_NAME = 'properties'
const KNOWN = [...Object.keys(KEYWORDS), ...ONE, ...SEVERAL, BY_NAME].sort().join(', ')

function pointer(at: string, name: string | number): string {
  return `${at}/${String(name).replaceAll('~', '~0').replaceAll('/', '~1')}`
}

/** Returns the first problem of a schema; undefined for one in the subset. */
export function findSchemaProblem(schema: unknown): SchemaProblem | undefined {
  return findProblem(schema, { instructions: 0 }, '', 0)
}

function findProblem(
  schema: unknown,
  size: SchemaSize,
  at: string,
  depth: number,
): SchemaProblem | undefined {
  if (typeof schema === 'boolean') return undefined
  if (!isParts(schema)) return { at, text: 'must be a schema' }
  if (depth > MOST_DEPTH) return { at, text: `is more than ${MOST_DEPTH} levels deep` }
  for (const [name, operand] of Object.entries(schema)) {
    const place = pointer(at, name)
    if (!isNesting(name)) {
      const problem = findKeywordProblem(name, operand, size, place)
      if (problem !== undefined) return problem
      continue
    }
    const inner = listInner(name, operand, place)
    if (inner === undefined) return { at: place, text: 'must have schemas' }
    for (const [innerPlace, innerSchema] of inner) {
      const problem = findProblem(innerSchema, size, innerPlace, depth + 1)
      if (problem !== undefined) return problem
    }
  }
  return undefined
}

function isNesting(name: string): boolean {
  return ONE.includes(name) || name === BY_NAME || SEVERAL.includes(name)
}

/** Returns the schemas of a nesting keyword with their places; undefined for a wrong value. */
function listInner(name: string, operand: unknown, at: string) {
  if (ONE.includes(name)) return [[at, operand]] as const
  const isRight = name === BY_NAME ? isParts(operand) : isList(operand) && operand.length > 0
  if (!isRight) return undefined
  return Object.entries(operand as Parts).map(
    ([key, schema]) => [pointer(at, key), schema] as const,
  )
}

function findKeywordProblem(
  name: string,
  operand: unknown,
  size: SchemaSize,
  at: string,
): SchemaProblem | undefined {
  if (ANNOTATIONS.has(name)) return undefined
  const text = Object.hasOwn(KEYWORDS, name)
    ? KEYWORDS[name]?.rule(operand, size)
    : `is not supported; the keywords are ${KNOWN}`
  return text === undefined ? undefined : { at, text }
}

/** Returns up to five problems of a value, by a schema that has none itself. */
export function checkBySchema(schema: unknown, value: unknown): readonly SchemaProblem[] {
  const budget: Budget = { steps: MOST_STEPS, patterns: new Map() }
  const faults = findFaults(schema, value, '', budget).take(MOST_PROBLEMS).toArray()
  if (budget.steps <= 0) return [{ at: '', text: 'is too large to be checked' }]
  return faults.map(({ at, text }) => ({ at, text: text() }))
}

/** Its text may be long, and most faults are not shown: those of branches, and those after the first five. */
interface Fault {
  readonly at: string
  readonly text: () => string
}

type Faults = Generator<Fault, undefined>

/** Finds nothing more at the end of the budget. */
function* findFaults(schema: unknown, value: unknown, at: string, budget: Budget): Faults {
  if (schema === false) yield { at, text: () => 'is not allowed' }
  if (!isParts(schema) || budget.steps <= 0) return
  budget.steps--
  for (const [name, operand] of Object.entries(schema)) {
    const keyword = KEYWORDS[name]
    if (keyword === undefined) continue
    if (isList(operand)) budget.steps -= operand.length / PER_STEP.listed
    if (typeof value === 'string') budget.steps -= value.length / PER_STEP.counted
    if (keyword.accepts(operand, value, budget)) continue
    yield { at, text: () => `must ${keyword.text(operand, value)}` }
  }
  yield* findFaultsOfBranches(schema, value, at, budget)
  yield* findFaultsInside(schema, value, at, budget)
}

function* findFaultsOfBranches(schema: Parts, value: unknown, at: string, budget: Budget): Faults {
  const branches = (name: string) => (isList(schema[name]) ? schema[name] : [])
  const accepts = (branch: unknown) => findFaults(branch, value, at, budget).next().done === true
  const [any, one] = [branches('anyOf'), branches('oneOf')]
  if (any.length > 0 && !any.some(accepts)) {
    yield { at, text: () => 'must match one of anyOf' }
    yield* findFaults(any[0], value, at, budget)
  }
  const matches = one.filter(accepts).length
  if (one.length > 0 && matches !== 1) {
    yield { at, text: () => `must match exactly one of oneOf, not ${matches}` }
  }
  for (const branch of branches('allOf')) yield* findFaults(branch, value, at, budget)
}

function* findFaultsInside(schema: Parts, value: unknown, at: string, budget: Budget): Faults {
  if (isList(value) && schema.items !== undefined) {
    for (const [i, item] of value.entries()) {
      yield* findFaults(schema.items, item, pointer(at, i), budget)
    }
  }
  if (!isParts(value)) return
  const named = isParts(schema.properties) ? schema.properties : {}
  for (const [name, member] of Object.entries(value)) {
    const own = Object.hasOwn(named, name) ? named[name] : (schema.additionalProperties ?? true)
    yield* findFaults(own, member, pointer(at, name), budget)
  }
}
