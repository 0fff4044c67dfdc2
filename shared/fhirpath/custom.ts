/**
 * Runs tenant FHIRPath. Short expressions can hang the process or exhaust memory, so three limits apply: compilable
 * syntax, values produced per evaluation (the engine reports each step), and time per batch, which V8 enforces.
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
  withoutWarnings,
} from './path.ts'

const MAX_LENGTH = 2_000
const MAX_TOKENS = 400
const MAX_NESTING = 32

const MAX_STEPS = 20_000
/** Items of one result, and of all results of an evaluation. */
const MAX_ITEMS = 10_000
const MAX_ALL_ITEMS = 200_000
/** Characters of all strings that an evaluation computes. */
const MAX_ALL_TEXT = 4_000_000
const MAX_INTEGER = 2n ** 63n

const TIMEOUT_MS = 100
const MAX_ATTEMPTS = 10
/** A thread that got this share of CPU time was not starved. */
const MOST_OF_IT = 0.75

// Separate cache: tenants must not evict the expressions that every write needs.
const cache = createPathCache('custom-fhirpath', 100_000)

/** Compiles a tenant expression. Errors: 400, and `too-costly` above a limit, here and at each call. */
export function compileTenant(
  expression: string,
  base?: string,
  maxTokens = MAX_TOKENS,
): CompiledPath {
  const run = compileTenantNodes(expression, base, maxTokens)
  return (node, variables) => nodeValues(run(node, variables))
}

export function compileTenantNodes(
  expression: string,
  base?: string,
  maxTokens = MAX_TOKENS,
): NodePath {
  const run = compileNodes(requireCheap(expression, maxTokens), base, cache)
  return (node, variables) => {
    const data = plain(node)
    return withinLimits(() => run(data, variables, { debugger: createMeter() }))
  }
}

/** Runs a synchronous batch within 100 ms or `timeoutMs` of this thread. Errors: 400 `too-costly` on timeout. */
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

/** Runs synchronous work under a V8 time limit. Errors: those of the work, 400 `too-costly`. */
export function withinTime<T>(timeoutMs: number, text: string, work: () => T): T {
  for (let attempt = 1; ; attempt++) {
    const start = process.threadCpuUsage()
    try {
      return withoutWarnings(() => runTimed(work, timeoutMs))
    } catch (error) {
      if (!isTimeout(error)) throw error
      // V8 skips `finally` blocks when it terminates code.
      isInside = false
      forgetPatterns()
      const { user, system } = process.threadCpuUsage(start)
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
  // The error comes from another vm context, so instanceof Error fails.
  return isObject(error) && error.code === 'ERR_SCRIPT_EXECUTION_TIMEOUT'
}

// Comments, strings, quoted names, words and numbers, symbols.
const TOKEN = /\/\*[\s\S]*?\*\/|\/\/.*|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`|\w+|\S/g

/** Returns the expression if it is cheap to compile and creates no objects. */
function requireCheap(expression: string, maxTokens: number): string {
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
    // `{}` is the empty collection; other braces are instance selectors.
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
      else if (typeof item === 'bigint' && (item > MAX_INTEGER || item < -MAX_INTEGER))
        throw tooExpensive()
    }
    if (steps > MAX_STEPS || items > MAX_ALL_ITEMS || text > MAX_ALL_TEXT) throw tooExpensive()
    if (result.length > MAX_ITEMS) throw tooExpensive()
  }
}

function tooExpensive() {
  return tooCostly('A FHIRPath expression makes too much')
}
