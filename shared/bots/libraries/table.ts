/**
 * npm libraries for bots: browser versions of Node's modules, and the published SDK. Each is a script loaded before the
 * code of a bot that names the module. `npm run build` bundles them into `dist/libraries`.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

export const CORE = '@medplum/core'
/** The guest has digests and randomness built in; the library has the rest. */
export const CRYPTO = 'crypto'
export const PDF = '#pdf'

/** Module → entry point bundled by `scripts/libraries.ts`. */
export const entries: Readonly<Record<string, string>> = {
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

/** The folder of the bundles and of `exports.json`. */
export const BUNDLES = join(import.meta.dirname, '../../../dist/libraries')
export const EXPORTS_FILE = 'exports.json'

export function bundleName(module: string): string {
  return module.replace(/^\W/, '').replace('/', '-')
}

const sources = new Map<string, string>()

/** Returns the script of a library: a function of `require`, for modules outside it, and the glue's `host`. */
export function librarySource(name: string): string {
  const source = sources.get(name) ?? readBundle(`${bundleName(name)}.js`)
  sources.set(name, source)
  return source
}

let exported: Readonly<Record<string, readonly string[]>> | undefined

export function libraryExports(name: string): readonly string[] {
  exported ??= JSON.parse(readBundle(EXPORTS_FILE)) as NonNullable<typeof exported>
  return exported[name] ?? []
}

function readBundle(file: string): string {
  try {
    return readFileSync(join(BUNDLES, file), 'utf8')
  } catch (error) {
    throw new Error('The libraries of bots are not built: run `npm run build`', { cause: error })
  }
}

/** Takes time in proportion to the code, which its authors control. */
const named = new RegExp(
  `(?:require\\w{0,20}\\s*\\(|\\bfrom\\b|\\bimport\\b(?:\\s*\\()?)\\s*["'\`](?:node:)?(${libraryModules.join('|')})["'\`]`,
  'g',
)

export function importedLibraries(code: string): readonly string[] {
  const found = [...code.matchAll(named)].map(([, name = '']) => parts[name]?.[0] ?? name)
  return [...new Set(found.flatMap((name) => [...(needs[name] ?? []), name]))]
}
