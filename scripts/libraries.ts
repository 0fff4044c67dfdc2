/**
 * Bundles the npm libraries that bots import (`shared/bots/libraries/table.ts`) into `dist/libraries`, one script
 * each, and lists their exports in `exports.json`. Their packages are absent in slugs and images. The folder is
 * replaced atomically.
 */
import { rename, rm, writeFile } from 'node:fs/promises'
import { createRequire, isBuiltin } from 'node:module'
import { join } from 'node:path'
import { build, type Plugin } from 'esbuild'
import {
  BUNDLES,
  bundleName,
  CORE,
  EXPORTS_FILE,
  entries,
  libraryModules,
  parts,
} from '../shared/bots/libraries/table.ts'

const load = createRequire(join(import.meta.dirname, '../shared/bots/libraries/table.ts'))
const fresh = `${BUNDLES}.${process.pid}`
const old = `${fresh}.old`

/** The sandbox has Node's modules and its own files; `process/` is its `process`. */
const sandboxModules: Plugin = {
  name: 'sandbox-modules',
  setup({ onResolve }) {
    onResolve({ filter: /./ }, ({ path, importer, kind }) => {
      if (kind === 'entry-point') return undefined
      if (path === 'process/') return { path: 'process', external: true }
      if (isBuiltin(path) || !isInstalled(path, importer)) return { path, external: true }
      return undefined
    })
  },
}

function isInstalled(path: string, importer: string): boolean {
  try {
    createRequire(importer).resolve(path)
    return true
  } catch {
    return false
  }
}

function readExports(module: string): readonly string[] {
  const [library, part] = parts[module] ?? [module]
  const exported: Readonly<Record<string, unknown>> = load(entries[library] ?? library)
  return Object.keys(Object(part === undefined ? exported : exported[part]))
}

try {
  await build({
    absWorkingDir: join(import.meta.dirname, '..'),
    entryPoints: Object.entries(entries).map(([module, entry]) => ({
      in: load.resolve(entry),
      out: bundleName(module),
    })),
    outdir: fresh,
    bundle: true,
    format: 'cjs',
    platform: 'browser',
    // Classes and functions of the libraries show their names to bots.
    minify: false,
    mainFields: ['browser', 'main'],
    banner: {
      js: '(function (require, host) {\nconst module = { exports: {} }\nconst { exports } = module',
    },
    footer: { js: 'return module.exports\n})' },
    plugins: [sandboxModules],
    logLevel: 'warning',
  })
  const exported = [CORE, ...libraryModules].map((module) => [module, readExports(module)])
  await writeFile(join(fresh, EXPORTS_FILE), JSON.stringify(Object.fromEntries(exported)))
  await rename(BUNDLES, old).catch(() => undefined)
  await rename(fresh, BUNDLES)
} finally {
  await rm(fresh, { recursive: true, force: true })
  await rm(old, { recursive: true, force: true })
}
