/**
 * npm libraries for bots: browser versions of Node's modules, and the published SDK. Each is a script loaded before the
 * code of a bot that names the module.
 */
import { createRequire } from 'node:module'

export const CORE = '@medplum/core'
/** The guest has digests and randomness built in; the library has the rest. */
export const CRYPTO = 'crypto'
export const PDF = '#pdf'

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

const needs: Readonly<Record<string, readonly string[]>> = {
  http: ['events', 'stream'],
  stream: ['events'],
  zlib: ['assert', 'events', 'stream', 'util'],
}

/** Not modules of Node. */
const beside = [CORE, CRYPTO, PDF]

export const parts: Readonly<Record<string, readonly [module: string, part: string]>> = {
  'assert/strict': ['assert', 'strict'],
  https: ['http', 'https'],
  'path/posix': ['path', 'posix'],
  'stream/promises': ['stream', 'promises'],
  'util/types': ['util', 'types'],
}

export const libraryModules: readonly string[] = [
  ...Object.keys(entries).filter((name) => !beside.includes(name)),
  ...Object.keys(parts),
]

const resolver = createRequire(import.meta.url)

export function libraryFile(name: string): string {
  return resolver.resolve(entries[name] ?? name)
}

export function libraryExports(name: string): readonly string[] {
  const [module, part] = parts[name] ?? [name]
  const exported: Readonly<Record<string, unknown>> = resolver(libraryFile(module))
  return Object.keys(Object(part === undefined ? exported : exported[part]))
}

const named = new RegExp(
  `(?:require\\w*\\s*\\(|\\bfrom\\b|\\bimport\\b\\s*\\(?)\\s*["'\`](?:node:)?(${libraryModules.join('|')})["'\`]`,
  'g',
)

export function importedLibraries(code: string): readonly string[] {
  const found = [...code.matchAll(named)].map(([, name = '']) => parts[name]?.[0] ?? name)
  return [...new Set(found.flatMap((name) => [...(needs[name] ?? []), name]))]
}
