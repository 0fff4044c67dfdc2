/**
 * Libraries from npm that a bot may use: Node's modules as browsers have them, the published SDK. Each is a script that
 * an isolate gets before the code of its bot, if that code names the module.
 */
import { createRequire } from 'node:module'

export const CORE = '@medplum/core'
/** Digests and randomness are the guest's own; the library has the rest. */
export const CRYPTO = 'crypto'
/** Stands behind `medplum.createPdf`. */
export const PDF = '#pdf'

/** The file of the package, or of ours in front of it, by name of the module. */
const entries: Readonly<Record<string, string>> = {
  [CORE]: CORE,
  assert: 'assert/',
  crypto: './crypto/index.cjs',
  events: 'events/',
  http: './http.cjs',
  path: 'path-browserify',
  [PDF]: './pdf.cjs',
  punycode: 'punycode/',
  stream: 'readable-stream/lib/ours/browser.js',
  string_decoder: 'string_decoder/',
  url: 'url/',
  util: 'util/',
  zlib: './zlib.cjs',
}

/** The libraries that one requires in its turn. */
const needs: Readonly<Record<string, readonly string[]>> = {
  http: ['events', 'stream'],
  stream: ['events'],
  zlib: ['assert', 'events', 'stream', 'util'],
}

/** No code names these as a module of Node's. */
const beside = [CORE, CRYPTO, PDF]

/** Modules that are a part of another. */
export const parts: Readonly<Record<string, readonly [module: string, part: string]>> = {
  'assert/strict': ['assert', 'strict'],
  https: ['http', 'https'],
  'path/posix': ['path', 'posix'],
  'stream/promises': ['stream', 'promises'],
  'util/types': ['util', 'types'],
}

/** Node's names of the modules that libraries answer for. */
export const libraryModules: readonly string[] = [
  ...Object.keys(entries).filter((name) => !beside.includes(name)),
  ...Object.keys(parts),
]

const resolver = createRequire(import.meta.url)

/** The path of the library's first file. */
export function libraryFile(name: string): string {
  return resolver.resolve(entries[name] ?? name)
}

/** The names that the library, or the module that is a part of one, exports. */
export function libraryExports(name: string): readonly string[] {
  const [module, part] = parts[name] ?? [name]
  const exported: Readonly<Record<string, unknown>> = resolver(libraryFile(module))
  return Object.keys(Object(part === undefined ? exported : exported[part]))
}

const named = new RegExp(
  `(?:require\\w*\\s*\\(|\\bfrom\\b|\\bimport\\b\\s*\\(?)\\s*["'\`](?:node:)?(${libraryModules.join('|')})["'\`]`,
  'g',
)

/** The libraries among `libraryModules` that the code needs. */
export function importedLibraries(code: string): readonly string[] {
  const found = [...code.matchAll(named)].map(([, name = '']) => parts[name]?.[0] ?? name)
  return [...new Set(found.flatMap((name) => [...(needs[name] ?? []), name]))]
}
