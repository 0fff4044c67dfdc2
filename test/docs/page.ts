/**
 * The commands of a page of the documentation. A block that begins with ```sh run is run, in the shell of the blocks
 * before it; a block ```text output or ```json output that follows is what it prints. There … stands for any part of a
 * line, and a line … alone for any lines.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

export const ROOT = join(import.meta.dirname, '../..')
const BLOCK = /^```(\w+)(?: (run|output))?\n([\s\S]*?)^```$/gm
const MARK = '@@block'

/** A command and its expected output, undefined if the page has none. */
export interface Step {
  readonly command: string
  readonly expected: string | undefined
}

export interface Ran extends Step {
  readonly code: number
  readonly printed: string
}

/** Returns the steps of a page, by its path from the repository root. */
export function stepsOf(page: string): readonly Step[] {
  const text = readFileSync(join(ROOT, page), 'utf8')
  const blocks = [...text.matchAll(BLOCK)].map(([, , kind, body = '']) => ({ kind, body }))
  return blocks.flatMap(({ kind, body }, index) => {
    if (kind !== 'run') return []
    const next = blocks[index + 1]
    return [{ command: body, expected: next?.kind === 'output' ? next.body : undefined }]
  })
}

/** Named from the root of the repository, as in `stepsOf`. */
export function allPages(): readonly string[] {
  const names = readdirSync(join(ROOT, 'docs'), { recursive: true, encoding: 'utf8' })
  const docs = names.filter((name) => name.endsWith('.md')).map((name) => `docs/${name}`)
  return ['README.md', 'CONTRIBUTING.md', ...docs.sort()]
}

/** Returns all pages with steps. */
export function pagesWithSteps(): readonly string[] {
  return allPages().filter((page) => stepsOf(page).length > 0)
}

/** Creates a folder like a clone of the repository, with first-start credentials. */
export function makeClone(folder: string, credentials: object): void {
  for (const name of readdirSync(ROOT)) {
    if (!/^\.(git|data|tap|test-data)$|^first-bot$/.test(name))
      symlinkSync(join(ROOT, name), join(folder, name))
  }
  mkdirSync(join(folder, '.data'))
  writeFileSync(join(folder, '.data/credentials.json'), JSON.stringify(credentials))
}

/** A shell's `npm run -s` that starts the script itself: npm's own start takes longer than most commands. */
function withoutNpm(): string {
  const { scripts }: { scripts: Record<string, string> } = JSON.parse(
    readFileSync(join(ROOT, 'package.json'), 'utf8'),
  )
  const cases = Object.entries(scripts)
    .filter(([, script]) => script.startsWith('node '))
    .map(([name, script]) => `${name}) ${script} "$@" ;;`)
  return `npm() {
  if [ "$1 $2" != 'run -s' ]; then command npm "$@"; return; fi
  local name="$3"; shift 3; [ "$1" = -- ] && shift
  case "$name" in ${cases.join('\n')} *) command npm run -s "$name" -- "$@" ;; esac
}`
}

/** Runs the steps in `folder` in order, up to the first failure. */
export async function follow(
  steps: readonly Step[],
  folder: string,
  baseUrl: string,
  asWritten = true,
): Promise<readonly Ran[]> {
  const base = baseUrl.replace(/\/$/, '')
  const lines = steps.flatMap(({ command }) => [
    command.replaceAll('http://localhost:8103', base),
    `echo "${MARK} $?"`,
  ])
  const script = join(folder, '.data/page.sh')
  writeFileSync(script, `set -o pipefail\n${asWritten ? '' : withoutNpm()}\n${lines.join('\n')}\n`)
  const { SUPER_ADMIN_CLIENT_ID: _, SUPER_ADMIN_CLIENT_SECRET: __, ...env } = process.env
  const path = `${join(ROOT, 'node_modules/.bin')}:${process.env.PATH}`
  const shell = spawn('bash', [script], {
    cwd: folder,
    env: {
      ...env,
      PATH: path,
      NODE_OPTIONS: '',
      BASE_URL: `${base}/`,
      INIT_CWD: folder,
      DATA_DIR: '.data',
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let printed = ''
  shell.stdout.on('data', (text) => (printed += text))
  shell.stderr.on('data', (text) => (printed += text))
  await once(shell, 'close')
  const parts = printed.split(new RegExp(`${MARK} (\\d+)\\n`))
  return steps.map((step, index) => ({
    ...step,
    printed: (parts[2 * index] ?? '').replaceAll(base, 'http://localhost:8103'),
    code: Number(parts[2 * index + 1] ?? 1),
  }))
}

/** A busy executor does not wait until it has measured it. */
const HEAP = 'heap … MB, '
const anyFor = (text: string) => text.split('…').map(RegExp.escape).join('.*')

/** Turns the expected output into a pattern. */
export function patternOf(expected: string): RegExp {
  const lines = expected
    .trim()
    .split('\n')
    .map((line) => {
      if (line.trim() === '…') return '[\\s\\S]*'
      return line
        .trimEnd()
        .split(HEAP)
        .map(anyFor)
        .join(`(?:${anyFor(HEAP)})?`)
    })
  return new RegExp(`^${lines.join('\\s*\\n')}$`)
}
