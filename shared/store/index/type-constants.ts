/** Key constants of a type in one project, and a cache of its codings. */
import { Cache } from '../../core/cache.ts'
import { plainWords, type Token } from '../../fhir/values.ts'
import type { Keys } from './keys.ts'
import type { CodeRow, PlannedType } from './rows.ts'

/** P(type, this) ^ R(url): held by a resource that canonical references name by `url`. */
export const CANONICAL_KEY = '_canonical'

const MAX_CODE = 1000
const MAX_DISPLAY = 500
const CACHED_CONSTANTS = 2000
const CACHED_CODINGS = 20_000
const MAX_CACHED_CODING = 500

export interface TypeConstants {
  readonly self: bigint
  readonly compartment: bigint
  readonly units: bigint
  readonly canonical: bigint
  readonly parameters: readonly Constants[]
}

export interface Constants {
  readonly p: bigint
  readonly present: bigint
  readonly absent: bigint
  readonly logical: bigint
  readonly words: bigint
  readonly texts: bigint
  readonly codings: Map<string, Coding>
}

export interface Coding {
  readonly system: string | undefined
  readonly display: string | undefined
  readonly keys: readonly bigint[]
  readonly codes: readonly CodeRow[]
}

interface KeyConstants {
  readonly constants: Cache<string, TypeConstants>
  codings: number
}

const caches = new WeakMap<Keys, KeyConstants>()

function constantsCache(keys: Keys): KeyConstants {
  const known = caches.get(keys)
  if (known !== undefined) return known
  const made = {
    constants: new Cache<string, TypeConstants>({ name: 'type-constants', max: CACHED_CONSTANTS }),
    codings: 0,
  }
  caches.set(keys, made)
  return made
}

export function typeConstants(keys: Keys, project: number, plan: PlannedType): TypeConstants {
  const cache = constantsCache(keys).constants
  const name = `${project}|${plan.type}|${plan.stamp}`
  const known = cache.get(name)
  if (known !== undefined) return known
  const parameters = plan.parameters.map(({ code }) => {
    const p = keys.param(project, plan.type, code)
    return {
      p,
      present: keys.present(p),
      absent: keys.absent(p),
      logical: keys.logical(p),
      words: keys.words(p),
      texts: keys.texts(p),
      codings: new Map<string, Coding>(),
    }
  })
  const made = {
    self: keys.param(project, plan.type, '_self'),
    compartment: keys.param(project, '*', '_compartment'),
    units: keys.units(project),
    canonical: keys.param(project, plan.type, CANONICAL_KEY),
    parameters,
  }
  cache.set(name, made)
  return made
}

/** Most codings repeat across resources. */
export function cachedCoding(keys: Keys, constants: Constants, token: Token): Coding {
  const { system, code, display } = token
  const known = constants.codings.get(code)
  if (known !== undefined && known.system === system && known.display === display) return known
  const made = makeCoding(keys, constants, token)
  const length = code.length + (system?.length ?? 0) + (display?.length ?? 0)
  if (length > MAX_CACHED_CODING) return made
  const cache = constantsCache(keys)
  cache.codings += 1
  if (cache.codings > CACHED_CODINGS) {
    cache.constants.clear()
    cache.codings = 0
  }
  constants.codings.set(code, made)
  return made
}

function makeCoding(keys: Keys, { p, texts }: Constants, token: Token): Coding {
  const { system = '', code, display } = token
  const exact = keys.token(p, system, code)
  const words = display === undefined ? undefined : textKey(keys, texts, display)
  const rows = [codeRow({ p, k: exact, system, code, display }), words?.row]
  return {
    system: token.system,
    display,
    keys: [keys.token(p, undefined, code), exact, ...(words === undefined ? [] : [words.key])],
    codes: rows.filter((row) => row !== undefined),
  }
}

export function textKey(
  keys: Keys,
  texts: bigint,
  text: string,
): { readonly key: bigint; readonly row: CodeRow | undefined } | undefined {
  const words = plainWords(text)
  if (words === '') return undefined
  const key = keys.token(texts, undefined, words)
  return { key, row: codeRow({ p: texts, k: key, system: '', code: words, display: undefined }) }
}

/** Undefined for NUL, which PostgreSQL text cannot hold, and long codes. */
export function codeRow(row: CodeRow): CodeRow | undefined {
  const { system, code, display } = row
  if (system.length + code.length > MAX_CODE) return undefined
  if (system.includes('\0') || code.includes('\0')) return undefined
  const isOdd = display !== undefined && (display.length > MAX_DISPLAY || display.includes('\0'))
  return isOdd ? { ...row, display: display.slice(0, MAX_DISPLAY).replaceAll('\0', '') } : row
}
