/**
 * FHIRPath that a tenant wrote. A short expression can hang the process or eat its memory, so three
 * fences stand around it: what may be compiled, what one evaluation may make (the engine reports every
 * step), and the time of a batch of evaluations, which V8 enforces even inside one function.
 */
import vm from 'node:vm'
import { notSupported, tooCostly } from '../core/errors.ts'
import { isObject } from '../fhir/resource.ts'
import { forgetPatterns } from './engine.ts'
import {
  type CompiledPath,
  compileNodes,
  createPathCache,
  type NodePath,
  type Nodes,
  nodeValues,
  plain,
  quietly,
} from './path.ts'

const MAX_LENGTH = 2_000
/** The parser needs up to 100 ms for so many. */
const MAX_TOKENS = 400
const MAX_NESTING = 32

const MAX_STEPS = 20_000
/** Items of one result, and of all results of one evaluation. */
const MAX_ITEMS = 10_000
const MAX_ALL_ITEMS = 200_000
/** Characters of all texts that one evaluation computes. */
const MAX_ALL_TEXT = 4_000_000
const MAX_INTEGER = 2n ** 63n

const TIMEOUT_MS = 100
const MAX_ATTEMPTS = 10
/** A thread that had this share of the time was not starved. */
const MOST_OF_IT = 0.75

// Tenants have a cache of their own, so that they do not evict what every write needs.
const cache = createPathCache('custom-fhirpath', 100_000)

/**
 * Compiles an expression of a tenant. The function keeps to the limits by itself; several calls belong
 * into one `withinLimits`. Errors: 400, `too-costly` above a limit, here and when it is called.
 */
export function compileTenant(
  expression: string,
  base?: string,
  maxTokens = MAX_TOKENS,
): CompiledPath {
  const run = compileTenantNodes(expression, base, maxTokens)
  return (node, variables) => nodeValues(run(node, variables))
}

/** As `compileTenant`, for callers that need the places of the elements. */
export function compileTenantNodes(
  expression: string,
  base?: string,
  maxTokens = MAX_TOKENS,
): NodePath {
  const run = compileNodes(requireModest(expression, maxTokens), base, cache)
  return (node, variables) => {
    const data = plain(node)
    return withinLimits(() => run(data, variables, { debugger: createMeter() }))
  }
}

/**
 * Runs a synchronous batch of evaluations, which together have 100 ms of this thread, or `timeoutMs`; some fifty a
 * batch make its own cost (0.1 ms) vanish. Expressions are compiled before it. Errors: those of the batch, 400 `too-costly` over time.
 */
export function withinLimits<T>(batch: () => T, timeoutMs = TIMEOUT_MS): T {
  if (isInside) return batch()
  return withinTime(timeoutMs, 'A FHIRPath expression takes too long', () => {
    isInside = true
    try {
      return batch()
    } finally {
      isInside = false
    }
  })
}

/** Runs synchronous work that V8 stops after a time of this thread. Errors: those of the work, 400 `too-costly`. */
export function withinTime<T>(timeoutMs: number, text: string, work: () => T): T {
  for (let attempt = 1; ; attempt++) {
    const start = process.threadCpuUsage()
    try {
      return quietly(() => runTimed(work, timeoutMs))
    } catch (error) {
      if (!isTimeout(error)) throw error
      // V8 runs no `finally` in code that it stops.
      isInside = false
      forgetPatterns()
      const { user, system } = process.threadCpuUsage(start)
      // On a busy machine the time may have gone to others.
      const isStarved = (user + system) / 1_000 < timeoutMs * MOST_OF_IT
      if (!isStarved || attempt === MAX_ATTEMPTS) throw tooCostly(text)
    }
  }
}

const script = new vm.Script('batch()')
const context = vm.createContext({})
let isInside = false

function runTimed<T>(batch: () => T, timeout: number): T {
  let result: { value: T } | undefined
  context.batch = () => {
    result = { value: batch() }
  }
  try {
    script.runInContext(context, { timeout })
  } finally {
    delete context.batch
  }
  if (result === undefined) throw new Error('the batch did not run')
  return result.value
}

function isTimeout(error: unknown): boolean {
  // It comes from the other context, whose Error is not ours.
  return isObject(error) && error.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT'
}

// Comments, texts, quoted names, words and numbers, single signs.
const TOKEN = /\/\*[\s\S]*?\*\/|\/\/.*|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`|\w+|\S/g

/** The expression, when it is cheap to compile and makes no objects. */
function requireModest(expression: string, maxTokens: number): string {
  if (expression.length > MAX_LENGTH) {
    throw tooCostly(`A FHIRPath expression may have ${MAX_LENGTH} characters`)
  }
  let tokens = 0
  let depth = 0
  let previous = ''
  for (const [token] of expression.matchAll(TOKEN)) {
    if (/^[([]$/.test(token)) depth++
    if (/^[)\]]$/.test(token)) depth--
    if (++tokens > maxTokens || depth > MAX_NESTING) {
      throw tooCostly('A FHIRPath expression has too many parts')
    }
    // `{}` is the empty collection, all else in braces an instance selector.
    if (previous === '{' && token !== '}') {
      throw notSupported('A FHIRPath expression cannot make instances here')
    }
    previous = token
  }
  return expression
}

function createMeter(): (context: unknown, focus: Nodes, result: Nodes) => void {
  let steps = 0
  let items = 0
  let text = 0
  return (_context, _focus, result) => {
    if (!Array.isArray(result)) return
    steps++
    items += result.length
    for (const item of result) {
      if (typeof item === 'string') text += item.length
      else if (typeof item === 'bigint' && (item > MAX_INTEGER || item < -MAX_INTEGER)) throw over()
    }
    if (steps > MAX_STEPS || items > MAX_ALL_ITEMS || text > MAX_ALL_TEXT) throw over()
    if (result.length > MAX_ITEMS) throw over()
  }
}

function over() {
  return tooCostly('A FHIRPath expression makes too much')
}
