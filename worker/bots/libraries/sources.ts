/** Links the scripts of libraries for executors, once per worker. */

import { readFileSync } from 'node:fs'
import { createRequire, findPackageJSON, isBuiltin } from 'node:module'
import { dirname, join, relative } from 'node:path'
import { pathToFileURL } from 'node:url'
import { libraryFile } from '../../../shared/bots/libraries/table.ts'
import { isObject } from '../../../shared/fhir/resource.ts'

const sources = new Map<string, string>()

export function librarySource(name: string): string {
  const source = sources.get(name) ?? link(libraryFile(name))
  sources.set(name, source)
  return source
}

const REQUIRE = /\brequire\(\s*(['"])([^'"]+)\1\s*\)/g
/** Returns a function of `require`, for modules outside the script, and the glue's `host`. */
function link(entry: string): string {
  const files = [entry]
  const texts: string[] = []
  const resolveTarget = (name: string, importer: string) => {
    const found = find(name, importer)
    if (typeof found === 'string') return found
    if (!files.includes(found.file)) files.push(found.file)
    return files.indexOf(found.file)
  }
  // The loop visits the dependencies that are appended here.
  for (const path of files) {
    const code = path === '' ? '' : readFileSync(path, 'utf8')
    const linked = code.replaceAll(REQUIRE, (whole, _quote, name: string) => {
      const target = resolveTarget(name, path)
      return typeof target === 'string' ? whole.replace(name, target) : `require(${target})`
    })
    texts.push(`(function (require, module, exports) {${linked}\n})`)
  }
  return `(function (outside, host) {
const files = [${texts.join(',\n')}]
const loaded = []
function require(name) {
  if (typeof name !== 'number') return outside(name)
  if (loaded[name] === undefined) {
    const module = (loaded[name] = { exports: {} })
    files[name].call(module.exports, require, module, module.exports)
  }
  return loaded[name].exports
}
return require(0)
})`
}

/** Returns a file ('' for an empty one) or the name of a sandbox module. */
function find(name: string, importer: string): string | { readonly file: string } {
  if (name === 'process/') return 'process'
  if (isBuiltin(name)) return name
  let path: string
  try {
    path = createRequire(importer).resolve(name)
  } catch {
    // An optional package, a comment, or a guest file, which each isolate has already.
    return name
  }
  return { file: forBrowsers(path, name) }
}

function forBrowsers(path: string, name: string): string {
  const manifest = findPackageJSON(pathToFileURL(path)) ?? path
  const { browser, main = 'index.js' }: { browser?: unknown; main?: string } = JSON.parse(
    readFileSync(manifest, 'utf8'),
  )
  const folder = dirname(manifest)
  // Like Node, prefers the module.
  if (path.endsWith('.mjs')) return join(folder, main)
  const isMain = /^(?:@[^/]+\/)?[^./][^/]*\/?$/.test(name)
  if (typeof browser === 'string') return isMain ? join(folder, browser) : path
  const own = `./${relative(folder, path)}`
  const other = isObject(browser) ? (browser[own] ?? browser[own.replace(/\.js$/, '')]) : undefined
  if (other === false) return ''
  return typeof other === 'string' ? join(folder, other) : path
}
