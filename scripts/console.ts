/**
 * Bundles the console (`server/console`) into `dist/console`: one file for what all pages share, one a page, hashed
 * names, each also as gzip and brotli. Whatever reads the folder finds the old one or the new one, never half of it.
 * The viewer of `/docs/api` is copied to `dist/viewer`: its package is not there where a slug or an image runs.
 */
import { copyFile, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { brotliCompress, constants, gzip } from 'node:zlib'
import { build, type Metafile, type Plugin, transform } from 'esbuild'

const ROOT = join(import.meta.dirname, '..')
const TARGET = join(ROOT, 'dist/console')
const ENTRY = 'server/console/main.tsx'
/** Above it a file is smaller by 3 % and takes ten times as long. */
const BROTLI_QUALITY = 9

/**
 * The style sheet of GraphiQL as a text, which its page alone loads. The fonts in it are larger than the rest of the
 * console; the reader's system has others.
 */
const graphiqlStyle: Plugin = {
  name: 'graphiql-style',
  setup({ onLoad }) {
    onLoad({ filter: /graphiql[/\\]dist[/\\]style\.css$/ }, async ({ path }) => {
      const style = (await readFile(path, 'utf8')).replace(/@font-face\s*\{[^}]*\}/g, '')
      const { code } = await transform(style, { loader: 'css', minify: true })
      return { contents: code, loader: 'text' }
    })
  },
}

const fresh = `${TARGET}.${process.pid}`
const old = `${fresh}.old`
try {
  await bundle()
  await copyViewer()
} finally {
  await rm(fresh, { recursive: true, force: true })
  await rm(old, { recursive: true, force: true })
}

async function bundle(): Promise<void> {
  await mkdir(fresh, { recursive: true })
  const { metafile } = await build({
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
    plugins: [graphiqlStyle],
    metafile: true,
    logLevel: 'warning',
  })
  const names = Object.keys(metafile.outputs).map(nameOf)
  await Promise.all(names.map(compress))
  await writeFile(join(fresh, 'manifest.json'), JSON.stringify(manifestOf(metafile), null, 2))
  await mkdir(join(ROOT, 'dist'), { recursive: true })
  await rename(TARGET, old).catch(() => undefined)
  await rename(fresh, TARGET)
}

/** `server/routes/docs.ts` serves them. */
async function copyViewer(): Promise<void> {
  const folder = join(ROOT, 'dist/viewer')
  await mkdir(folder, { recursive: true })
  for (const name of ['swagger-ui-bundle.js', 'swagger-ui.css']) {
    await copyFile(join(ROOT, 'node_modules/swagger-ui-dist', name), join(folder, name))
  }
}

function nameOf(path: string): string {
  return path.split('/').at(-1) ?? ''
}

async function compress(name: string): Promise<void> {
  const path = join(fresh, name)
  const content = await readFile(path)
  const params = {
    [constants.BROTLI_PARAM_QUALITY]: BROTLI_QUALITY,
    [constants.BROTLI_PARAM_SIZE_HINT]: content.length,
  }
  await Promise.all([
    promisify(brotliCompress)(content, { params }).then((data) => writeFile(`${path}.br`, data)),
    promisify(gzip)(content, { level: 9 }).then((data) => writeFile(`${path}.gz`, data)),
  ])
}

/** `server/routes/console.ts` and the test of sizes read it. */
function manifestOf({ outputs }: Metafile) {
  const [script = '', main] =
    Object.entries(outputs).find(([, output]) => output.entryPoint === ENTRY) ?? []
  const entries = Object.entries(outputs).flatMap(([path, { entryPoint }]) =>
    entryPoint === undefined || entryPoint === ENTRY
      ? []
      : [[entryPoint, neededBy(path, outputs).map(nameOf)] as const],
  )
  return {
    script: nameOf(script),
    style: nameOf(main?.cssBundle ?? ''),
    preload: neededBy(script, outputs).slice(1).map(nameOf),
    pages: Object.fromEntries(entries),
  }
}

/** The file itself, and all that it imports before it begins. */
function neededBy(path: string, outputs: Metafile['outputs']): readonly string[] {
  const needed = new Set([path])
  for (const one of needed) {
    for (const { kind, path: other } of outputs[one]?.imports ?? []) {
      if (kind === 'import-statement') needed.add(other)
    }
  }
  return [...needed]
}
