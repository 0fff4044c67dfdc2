/** Loads the FHIRPath engine on first use: its UCUM and FHIR tables are large and slow to load. */
import { createRequire } from 'node:module'
import type { Model, ResourceNode, UserInvocationTable } from 'fhirpath'
import { RE2JS } from 're2js'
import { tooCostly } from '../core/errors.ts'
import { nextTurn } from '../core/yielding.ts'
import { isObject, parseReference } from '../fhir/resource.ts'

type Fhirpath = typeof import('fhirpath').default

interface Engine {
  readonly fhirpath: Fhirpath
  readonly r4: Model
}

const require = createRequire(import.meta.url)
let loaded: Engine | undefined
let loading: Promise<void> | undefined

export function engine(): Engine {
  loaded ??= { fhirpath: require('fhirpath'), r4: require('fhirpath/fhir-context/r4') }
  return loaded
}

/** Modules of the engine in load order, under the names it requires them by. */
const PARTS = [
  'antlr4/src/antlr4/atn/index',
  'antlr4/src/antlr4/tree/index',
  './parser/antlr4-index',
  './parser/generated/FHIRPathLexer',
  './parser/generated/FHIRPathParser',
  '@lhncbc/ucum-lhc',
  './types',
  './terminologies',
  './fhirpath',
  '../fhir-context/r4/path2Type.json',
  '../fhir-context/r4',
]

/** Warm-up: the first expressions compile much of the parser and engine. */
const FIRST = ['use', "use = 'official' and period.start > @2020-01-01", '%resource.name.exists()']
const FIRST_NAME = { use: 'official', period: { start: '2020-01-02' } }
const FIRST_RESOURCE = { resourceType: 'Patient', name: [FIRST_NAME] }

export function loadEngine(): Promise<void> {
  loading ??= loaded === undefined ? loadParts() : Promise.resolve()
  return loading
}

async function loadParts(): Promise<void> {
  const within = createRequire(require.resolve('fhirpath'))
  for (const part of PARTS) {
    within(part)
    await nextTurn()
  }
  const { fhirpath, r4 } = engine()
  for (const expression of FIRST) {
    const run = fhirpath.compile({ base: 'Patient.name', expression }, r4, {})
    await nextTurn()
    run(FIRST_NAME, { resource: FIRST_RESOURCE, rootResource: FIRST_RESOURCE })
    await nextTurn()
  }
}

// Replacements of engine functions: linear-time regular expressions, bounded strings, and a `resolve()` without I/O.

const MAX_TEXT = 1_000_000

type Text = string | readonly never[]

export const functions: UserInvocationTable = {
  matches: withTexts([1, 2], (text, pattern, flags) => compiledPattern(pattern, flags).test(text)),
  matchesFull: withTexts([1, 2], (text, pattern, flags) =>
    compiledPattern(pattern, flags).testExact(text),
  ),
  replaceMatches: withTexts([2], (text, pattern, replacement = '') => {
    if (pattern === '') return text
    const matcher = compiledPattern(pattern).matcher(text)
    let matches = 0
    while (matcher.find()) matches++
    // `$1` inserts part of the match, $` and $' everything before or after it.
    const groups = replacement.split('$').length - 1
    const reach = /\$[`']/.test(replacement) ? matches : 1
    requireShort(text.length * (1 + groups * reach) + matches * replacement.length)
    return compiledPattern(pattern).matcher(text).replaceAll(replacement)
  }),
  replace: withTexts([2], (text, pattern, replacement = '') => {
    requireShort(text.length)
    const matches = pattern === '' ? text.length + 1 : text.split(pattern).length - 1
    requireShort(text.length + matches * replacement.length)
    // A function, because `$&` in a replacement string would insert the match.
    return text.replaceAll(pattern, () => replacement)
  }),
  join: {
    fn: (items: readonly unknown[], separator: Text = '') => {
      const texts = items.map(engine().fhirpath.util.valData).filter((item) => item != null)
      if (texts.length === 0 || typeof separator !== 'string') return []
      if (!texts.every((text) => typeof text === 'string')) {
        throw new Error('Join requires a collection of strings.')
      }
      requireShort(texts.reduce((sum, text) => sum + text.length + separator.length, 0))
      return texts.join(separator)
    },
    arity: { 0: [], 1: ['String'] },
    internalStructures: true,
  },
  resolve: { fn: resolve, arity: { 0: [] }, internalStructures: true },
}

function requireShort(length: number): void {
  if (length > MAX_TEXT) throw tooCostly('A FHIRPath expression makes a text that is too long')
}

/** A function of one string with string arguments; empty when an argument is empty. */
function withTexts(
  arities: readonly (1 | 2)[],
  answer: (text: string, first: string, second?: string) => unknown,
): UserInvocationTable[string] {
  const fn = (items: readonly unknown[], first: Text, second?: Text) => {
    if (items.length > 1) throw new Error('Expected a single text')
    const text = engine().fhirpath.util.valData(items[0])
    if (text === undefined || text === null || typeof first !== 'string') return []
    if (typeof text !== 'string') throw new Error('Expected a text')
    if (second !== undefined && typeof second !== 'string') return []
    return answer(text, first, second)
  }
  const arity = Object.fromEntries(arities.map((n) => [n, Array<'String'>(n).fill('String')]))
  return { fn, arity, internalStructures: true }
}

/** A compiled pattern takes up to 1 MB within these limits. */
const MAX_PATTERNS = 100
const MAX_PATTERN_LENGTH = 500
const MAX_PROGRAM = 2_000

// A Map, not an LRU cache: evaluation can be terminated at any point, and a Map stays consistent.
const patterns = new Map<string, RE2JS>()

/** FHIRPath matches in single-line mode: a dot matches any character. */
/** Compiles a linear-time pattern. Errors: invalid or too costly patterns. */
export function compiledPattern(pattern: string, flags = ''): RE2JS {
  const key = `${flags}/${pattern}`
  const known = patterns.get(key)
  if (known !== undefined) return known
  if (!/^[im]*$/.test(flags)) throw new Error('The flags of a pattern are only i and m')
  if (pattern.length > MAX_PATTERN_LENGTH) throw tooCostly('A pattern is too long')
  const modes =
    RE2JS.DOTALL |
    (flags.includes('i') ? RE2JS.CASE_INSENSITIVE : 0) |
    (flags.includes('m') ? RE2JS.MULTILINE : 0)
  const made = RE2JS.compile(RE2JS.translateRegExp(pattern), modes)
  if (made.programSize() > MAX_PROGRAM) throw tooCostly('A pattern has too many states')
  if (patterns.size >= MAX_PATTERNS) patterns.clear()
  patterns.set(key, made)
  return made
}

/** Drops compiled patterns: one may have been terminated mid-match. */
export function forgetPatterns(): void {
  patterns.clear()
}

/**
 * Resolves references without I/O, to type and id or the contained resource.
 * https://hl7.org/fhir/R4/fhirpath.html#functions
 */
function resolve(this: unknown, items: readonly unknown[]): unknown[] {
  return items.flatMap((item) => {
    const value = engine().fhirpath.util.valData(item)
    const text = isObject(value) ? value.reference : value
    if (typeof text !== 'string') return []
    const target = text.startsWith('#')
      ? (containedIn(item, text.slice(1)) ?? containedInRoot(this, text.slice(1)))
      : resolveStub(
          text.replace(/^https?:\/\/.*\/(?=[A-Z][A-Za-z]+\/[^/]+(?:\/_history\/[^/]+)?$)/, ''),
        )
    if (target === undefined) return []
    const parent = { path: null, parentResNode: null, data: { target } }
    return engine().fhirpath.util.makeChildResNodes(this, parent, 'target')
  })
}

function resolveStub(reference: string): object | undefined {
  const target = parseReference(reference)
  return target === undefined ? undefined : { resourceType: target.type, id: target.id }
}

function containedIn(item: unknown, id: string): unknown {
  for (let node = item as ResourceNode | null; node; node = node.parentResNode) {
    const contained: unknown = node.data?.contained
    if (!Array.isArray(contained)) continue
    return id === '' ? node.data : contained.find((resource) => resource?.id === id)
  }
  return undefined
}

/** An element does not link to its resource, so its containing resource comes from a variable. */
function containedInRoot(context: unknown, id: string): unknown {
  const variables = isObject(context) ? context.vars : undefined
  const root = isObject(variables) ? variables.rootResource : undefined
  const contained = isObject(root) ? root.contained : undefined
  if (!Array.isArray(contained)) return undefined
  return id === '' ? root : contained.find((resource) => resource?.id === id)
}
