/**
 * Bundles the console (`server/console`) into `dist/console`: one shared file and one per page, with hashed names, also
 * as gzip and brotli. The folder is replaced atomically. The viewer of `/docs/api` is copied to `dist/viewer`, as its
 * package is absent in slugs and images.
 */
import { copyFile, mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { brotliCompress, constants, gzip } from 'node:zlib'
import { type BuildOptions, build, type Metafile, type Plugin } from 'esbuild'
import { generatedModules } from './console/generated.ts'

const ROOT = join(import.meta.dirname, '..')
const TARGET = join(ROOT, 'dist/console')
const ENTRY = 'server/console/main.tsx'
const BROTLI_QUALITY = 11
/** The best quality takes 20 s for a file of several MB. */
const LARGE_FILE = { bytes: 1_000_000, quality: 9 }

const fresh = `${TARGET}.${process.pid}`
const old = `${fresh}.old`
const OPTIONS = {
  absWorkingDir: ROOT,
  entryPoints: [ENTRY],
  outdir: fresh,
  entryNames: '[name]-[hash]',
  chunkNames: '[name]-[hash]',
  assetNames: '[name]-[hash]',
  bundle: true,
  splitting: true,
  format: 'esm',
  target: 'es2022',
  minify: true,
  legalComments: 'none',
  jsx: 'automatic',
  define: { 'process.env.NODE_ENV': '"production"' },
  metafile: true,
  logLevel: 'warning',
} as const satisfies BuildOptions
try {
  await bundle()
  await copyViewer()
} finally {
  await rm(fresh, { recursive: true, force: true })
  await rm(old, { recursive: true, force: true })
}

async function bundle(): Promise<void> {
  await mkdir(fresh, { recursive: true })
  const first = await build({ ...OPTIONS, plugins: [generatedModules], write: false })
  const plugins = [generatedModules, componentStylesPlugin(first.metafile)]
  const { metafile } = await build({ ...OPTIONS, plugins })
  await Promise.all((await readdir(fresh)).map(compress))
  await writeFile(
    join(fresh, 'manifest.json'),
    JSON.stringify(buildConsoleManifest(metafile), null, 2),
  )
  await mkdir(join(ROOT, 'dist'), { recursive: true })
  await rename(TARGET, old).catch(() => undefined)
  await rename(fresh, TARGET)
}

async function copyViewer(): Promise<void> {
  const folder = join(ROOT, 'dist/viewer')
  await mkdir(folder, { recursive: true })
  for (const name of ['swagger-ui-bundle.js', 'swagger-ui.css']) {
    await copyFile(join(ROOT, 'node_modules/swagger-ui-dist', name), join(folder, name))
  }
}

/** Includes only the styles of used components, half of all. */
function componentStylesPlugin({ outputs }: Metafile): Plugin {
  const used = new Set(
    Object.values(outputs).flatMap(({ inputs }) =>
      Object.keys(inputs).map((path) => /core\/esm\/components\/(\w+)\//.exec(path)?.[1]),
    ),
  )
  return {
    name: 'styles-of-components',
    setup({ onLoad }) {
      onLoad({ filter: /@mantine[/\\]core[/\\]styles\.css$/ }, async ({ path }) => {
        const whole = await readFile(path, 'utf8')
        const folder = join(path, '../styles')
        const components = new Set(await readdir(join(path, '../esm/components')))
        const names = (await readdir(folder)).filter((name) => /^[\w-]+\.css$/.test(name))
        const sheets = await Promise.all(
          names
            .map((name) => name.replace('.css', ''))
            .filter((name) => used.has(name) || !components.has(name))
            .map((name) => readFile(join(folder, `${name}.css`), 'utf8')),
        )
        const placed = sheets.map((sheet) => [whole.indexOf(sheet.trim()), sheet] as const)
        if (placed.some(([place]) => place < 0)) return { contents: whole, loader: 'css' }
        const inOrder = placed.toSorted(([a], [b]) => a - b)
        return { contents: inOrder.map(([, sheet]) => sheet).join('\n'), loader: 'css' }
      })
    },
  }
}

function baseName(path: string): string {
  return path.split('/').at(-1) ?? ''
}

async function compress(name: string): Promise<void> {
  const path = join(fresh, name)
  const content = await readFile(path)
  const params = {
    [constants.BROTLI_PARAM_QUALITY]:
      content.length > LARGE_FILE.bytes ? LARGE_FILE.quality : BROTLI_QUALITY,
    [constants.BROTLI_PARAM_SIZE_HINT]: content.length,
  }
  await Promise.all([
    promisify(brotliCompress)(content, { params }).then((data) => writeFile(`${path}.br`, data)),
    promisify(gzip)(content, { level: 9 }).then((data) => writeFile(`${path}.gz`, data)),
  ])
}

function buildConsoleManifest({ outputs }: Metafile) {
  const [script = '', main] =
    Object.entries(outputs).find(([, output]) => output.entryPoint === ENTRY) ?? []
  const entries = Object.entries(outputs).flatMap(([path, { entryPoint }]) =>
    entryPoint === undefined || entryPoint === ENTRY
      ? []
      : [[entryPoint, neededBy(path, outputs).map(baseName)] as const],
  )
  return {
    script: baseName(script),
    style: baseName(main?.cssBundle ?? ''),
    preload: neededBy(script, outputs).slice(1).map(baseName),
    pages: Object.fromEntries(entries),
  }
}

function neededBy(path: string, outputs: Metafile['outputs']): readonly string[] {
  const needed = new Set([path])
  for (const one of needed) {
    for (const { kind, path: other } of outputs[one]?.imports ?? []) {
      if (kind === 'import-statement') needed.add(other)
    }
  }
  return [...needed]
}
