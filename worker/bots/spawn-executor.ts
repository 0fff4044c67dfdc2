/**
 * Starts the process of an executor. Its input is built once per worker: its files as JavaScript, the guest as one
 * script, and code caches.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { createRequire, stripTypeScriptTypes } from 'node:module'
import { basename, dirname } from 'node:path'
import type { Duplex } from 'node:stream'
import { fileURLToPath } from 'node:url'

const FOLDER = new URL('../executor/', import.meta.url)
const BOOT = fileURLToPath(new URL('boot.cjs', FOLDER))
/**
 * Blocks above this size are returned to the system. V8 frees half of an isolate in such blocks; those reused by
 * compilation (32 KB) stay below. https://man7.org/linux/man-pages/man3/mallopt.3.html
 */
const ALLOCATOR = { MALLOC_MMAP_THRESHOLD_: '40960' }
const IMPORT = /^import \{([^}]*)\} from '([^']+)'$/gm
const EXPORT = /^export (?=(?:async )?(?:function|class|const) (\w+))/gm
const RELATIVE = /'\.{1,2}\/(?:[\w-]+\/)*([\w-]+\.cjs)'/g

let addon: string | undefined
let input: Buffer | undefined
let caches = { guest: '', own: '' }

/** `pipe` carries the frames of messages.ts. The process has no environment but the setting of its allocator. */
export function spawnExecutor(mostIsolates: number): {
  readonly child: ChildProcess
  readonly pipe: Duplex
} {
  const child = spawn(process.execPath, executorArguments(mostIsolates), {
    env: ALLOCATOR,
    cwd: '/',
    stdio: ['pipe', 'ignore', 'pipe', 'pipe'],
  })
  // A child that exits early does not read it; the caller handles its exit.
  child.stdin?.on('error', () => {}).end(executorInput())
  // `stdio` makes the fourth a pipe, which Node opens in both directions.
  return { child, pipe: child.stdio[3] as Duplex }
}

function executorArguments(mostIsolates: number): string[] {
  addon ??= addonPath()
  return [
    '--permission',
    '--allow-addons',
    `--allow-fs-read=${BOOT}`,
    `--allow-fs-read=${addon}`,
    '--disable-warning=ExperimentalWarning',
    '--disable-warning=SecurityWarning',
    BOOT,
    addon,
    String(mostIsolates),
  ]
}

/** The prebuilt addon of this platform, found as isolated-vm's own loader does. */
function addonPath(): string {
  const own = createRequire(import.meta.url).resolve('isolated-vm')
  const loader: { path(folder: string): string } = createRequire(own)('node-gyp-build')
  return loader.path(dirname(own))
}

/**
 * Returns the startup input: executor files, their code caches, the guest script and its code cache.
 * The caches are empty for the first executor, which makes them. They are machine code, so they stay in memory.
 */
function executorInput(): Buffer {
  input ??= Buffer.from(
    [
      executorFiles(),
      caches.own,
      withoutWide(readGuestFiles(new URL('guest/', FOLDER))),
      caches.guest,
    ].join('\0'),
    'latin1',
  )
  return input
}

/** Keeps the caches of an executor that has run no bot code yet. */
export function keepCaches(guestCache: string, ownCache: string): void {
  caches = { guest: guestCache, own: ownCache }
  input = undefined
}

/** Returns the executor's files as JSON, by name, each a function of `exported` and `load`; see boot.cjs. */
function executorFiles(): string {
  return JSON.stringify(
    Object.fromEntries(
      readdirSync(FOLDER)
        .filter((name) => name.endsWith('.ts'))
        .map((name) => [`./${name}`, asFunction(readFileSync(new URL(name, FOLDER), 'utf8'))]),
    ),
  )
}

/** Keeps line numbers for stack traces. */
function asFunction(text: string): string {
  const exported: string[] = []
  const code = stripTypeScriptTypes(text)
    .replaceAll(IMPORT, (_all, names: string, file) => {
      return `const {${names.replaceAll(' as ', ': ')}} = load('${file}')`
    })
    .replaceAll(EXPORT, (_all, name) => {
      exported.push(name)
      return ''
    })
  return withoutWide(
    `(function (exported, load) { 'use strict'; ${code}\nObject.assign(exported, { ${exported.join(', ')} }) })`,
  )
}

/**
 * Escapes characters above Latin-1: one of them would double the size of the string, of which each isolate holds a
 * copy.
 */
function withoutWide(source: string): string {
  const escaped = source.replaceAll(
    /[^\0-\x7f]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
  )
  // V8 keeps slices of a two-byte string in two bytes.
  return Buffer.from(escaped, 'latin1').toString('latin1')
}

/**
 * Returns the guest files as one script. Each file is a function that runs at its first `require`, so a bot pays only
 * for the files it uses, and one code cache covers all of them.
 */
function readGuestFiles(folder: URL): string {
  const paths = readdirSync(folder, { recursive: true, encoding: 'utf8' })
  const files = paths
    .filter((path) => path.endsWith('.cjs'))
    .map((path) => {
      // Files are keyed by base name: joining paths in the isolate would need functions that bots may have replaced.
      const name = basename(path)
      const code = readFileSync(new URL(path, folder), 'utf8').replaceAll(RELATIVE, "'./$1'")
      // Strict mode hides the functions from the call sites of Error.prepareStackTrace.
      return `${JSON.stringify(`./${name}`)}: (function (require, module, exports, host) {'use strict';\n${code}\n})`
    })
  return `(function (send, ask, sendHere) {
'use strict'
const files = { __proto__: null, ${files.join(',\n')} }
const loaded = { __proto__: null }
const host = { __proto__: null }
const CannotFind = Error
function require(name) {
  const known = loaded[name]
  if (known !== undefined) return known.exports
  const file = files[name]
  if (file === undefined) throw new CannotFind("Cannot find module '" + name + "'")
  const module = (loaded[name] = { exports: {} })
  file(require, module, module.exports, host)
  return module.exports
}
require.loaded = loaded
return require('./glue.cjs').boot(send, ask, sendHere)
})`
}
