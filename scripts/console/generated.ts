/**
 * Modules of the console that are made at build time; `server/console/generated.d.ts` declares them: the templates for
 * new bots, which are the files in `examples` with their head comments, the type declarations for the editor of bots,
 * and its language worker.
 */
import { glob, readdir, readFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { type BuildOptions, build, type Plugin } from 'esbuild'

const LANGUAGE_WORKER = 'server/console/pages/bots/language-worker.ts'

type Read = (options: BuildOptions) => Promise<unknown>

const MODULES: Readonly<Record<string, readonly [name: string, read: Read]>> = {
  'console:bot-templates': ['botTemplates', readBotTemplates],
  'console:bot-declarations': ['botDeclarations', readBotDeclarations],
  'console:language-worker': ['languageWorker', buildLanguageWorker],
}

export const generatedModules: Plugin = {
  name: 'generated-modules',
  setup({ onResolve, onLoad, initialOptions }) {
    onResolve({ filter: /^console:/ }, ({ path }) =>
      path in MODULES ? { path, namespace: 'generated' } : undefined,
    )
    onLoad({ filter: /./, namespace: 'generated' }, async ({ path }) => {
      const [name, read] = MODULES[path] ?? []
      return { contents: `export const ${name} = ${JSON.stringify(await read?.(initialOptions))}` }
    })
  },
}

/** Writes the web worker next to the other files; returns its name. */
async function buildLanguageWorker({ outdir = '', target = [] }: BuildOptions) {
  const { outputs } = (
    await build({
      outdir,
      target,
      entryPoints: [LANGUAGE_WORKER],
      entryNames: '[name]-[hash]',
      bundle: true,
      format: 'iife',
      minify: true,
      legalComments: 'none',
      metafile: true,
      logLevel: 'warning',
      plugins: [generatedModules],
    })
  ).metafile
  return basename(Object.keys(outputs)[0] ?? '')
}

const EXAMPLES = join(import.meta.dirname, '../../examples')

interface BotTemplate {
  readonly name: string
  readonly description: string
  readonly code: string
}

async function readBotTemplates(): Promise<readonly BotTemplate[]> {
  const bots = (await readdir(join(EXAMPLES, 'bots'))).map((name) => join(EXAMPLES, 'bots', name))
  const paths = [join(EXAMPLES, 'admit.ts'), ...bots].filter((path) => path.endsWith('.ts'))
  const templates = await Promise.all(paths.map(readTemplate))
  return templates.toSorted((a, b) => a.name.localeCompare(b.name))
}

async function readTemplate(path: string): Promise<BotTemplate> {
  const code = await readFile(path, 'utf8')
  const words = basename(path, '.ts').replaceAll('-', ' ')
  const name = words.charAt(0).toUpperCase() + words.slice(1)
  return { name, description: describe(code), code }
}

/** Returns the head comment as one line, without the addresses of standards. */
function describe(code: string): string {
  const [, comment = ''] = /^\/\*\*(.*?)\*\//s.exec(code) ?? []
  const lines = comment.split('\n').map((line) => line.replace(/^\s*\*? ?/, '').trim())
  return lines
    .join(' ')
    .replace(/https?:\S+/g, '')
    .replace(/\s+/g, ' ')
    .trim()
}

const PACKAGES = join(import.meta.dirname, '../../node_modules')
const PATTERNS = [
  'typescript5/lib/lib.{es,decorators}*.d.ts',
  '@types/node/*.d.ts',
  '@types/node/{assert,dns,fs,readline,stream,timers,web-globals}/*.d.ts',
  'undici-types/*.d.ts',
  '@medplum/core/dist/esm/index.d.ts',
  '@medplum/fhirtypes/dist/*.d.ts',
]

/** Members of `event` that this service adds to the client's type. */
const EVENT = `import '@medplum/core'
declare module '@medplum/core' {
  interface BotEvent<T> {
    /** Id of this run, the same for all its attempts. */
    readonly runId: string
    /** Attempts of this run so far, this one included. */
    readonly attempt: number
    /** The caller's input of an instance-level operation, whose \`input\` is the resource. */
    readonly parameters?: any
    /** The agent that sent the input, its channel, and the address of the device. */
    readonly agent?: {
      readonly reference: string
      readonly display?: string
      readonly channel: string
      readonly remote: string
      readonly remoteAddress: string
      readonly forwardedFor?: string
    }
    /** The time a schedule planned this run for. */
    readonly scheduledTime?: string
  }
}
`

/** Returns declarations by path below `node_modules`. */
async function readBotDeclarations(): Promise<Readonly<Record<string, string>>> {
  const paths = await Array.fromAsync(glob(PATTERNS, { cwd: PACKAGES }))
  const files = await Promise.all(
    paths.toSorted().map(async (path) => {
      const text = await readFile(join(PACKAGES, path), 'utf8')
      return [path, text.replaceAll('\r\n', '\n')]
    }),
  )
  return { ...Object.fromEntries(files), 'event.d.ts': EVENT }
}
