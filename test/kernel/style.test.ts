/** Style checks: plain comments, and small files, functions and folders. */
import { readdirSync, readFileSync } from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import { join } from 'node:path'
import { type AnyNode, type Comment, parse, tokenizer } from 'acorn'
import t from 'tap'

const ROOT = join(import.meta.dirname, '../..')
const PRODUCT = ['server', 'worker', 'shared']
const MOST_LINES = 60
const MOST_ENTRIES = 25
const MOST_PARAMETERS = 4

/** Openings without a clear subject. */
const NO_SUBJECT = /^(Of|What|Who|Whom|Whose|Those|That)\b/
const RETIRED = /\b(owed|untold|[tT]old|telling|tells of|asked of|[a-z-]+\.md §[\d.]+)/

interface Source {
  readonly path: string
  readonly text: string
}

const sources = [...PRODUCT, 'scripts', 'test'].flatMap(sourcesIn)
const product = sources.filter(({ path }) => PRODUCT.includes(path.split('/')[0] ?? ''))

function sourcesIn(folder: string): Source[] {
  const names = readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
  return names
    .filter((name) => /\.(ts|tsx|js|cjs)$/.test(name) && !/(^|\/)data\//.test(name))
    .map((name) => `${folder}/${name}`)
    .sort()
    .map((path) => ({ path, text: readFileSync(join(ROOT, path), 'utf8') }))
}

/** Returns each block, and each run of line comments, without markers. */
function commentsOf({ path, text }: Source): readonly string[] {
  if (path.endsWith('.tsx')) return commentsOfTsx(text)
  const found: Comment[] = []
  const options = { ecmaVersion: 'latest', sourceType: 'module', onComment: found } as const
  for (const _ of tokenizer(text, options));
  const joined: Comment[] = []
  for (const comment of found) {
    const last = joined.at(-1)
    const goesOn = last?.type === 'Line' && /^\n[ \t]*$/.test(text.slice(last.end, comment.start))
    if (!goesOn || comment.type === 'Block') joined.push({ ...comment })
    else Object.assign(last, { value: last.value + comment.value, end: comment.end })
  }
  return joined.map(({ value }) => value.replace(/^\s*\*+ ?/gm, '').trim())
}

/** Returns the comments of a TSX file, whose text between tags the tokenizer takes for code. */
function commentsOfTsx(text: string): readonly string[] {
  const found = text.matchAll(/\/\*([\s\S]*?)\*\/|((?:^[ \t]*\/\/.*\n)+)/gm)
  return [...found].map(([, block, lines]) =>
    (block ?? lines ?? '').replace(/^\s*(\*+|\/\/) ?/gm, '').trim(),
  )
}

function commentsThat(isWrong: (comment: string) => boolean): readonly string[] {
  return sources
    .filter(({ path }) => !path.endsWith('kernel/style.test.ts'))
    .flatMap((source) =>
      commentsOf(source)
        .filter(isWrong)
        .map((comment) => `${source.path}: ${comment.split('\n')[0]}`),
    )
}

t.test('a comment begins with a subject', async (t) => {
  t.same(
    commentsThat((comment) => NO_SUBJECT.test(comment)),
    [],
  )
})

t.test('a comment uses plain words and names no document that is not here', async (t) => {
  t.same(
    commentsThat((comment) => RETIRED.test(comment)),
    [],
  )
})

t.test('a file of the product opens with a comment', async (t) => {
  const wrong = product.filter(({ text }) => !/^(#!.*\n)?\s*(\/\*|\/\/)/.test(text))
  t.same(
    wrong.map(({ path }) => path),
    [],
  )
})

t.test(`no function has more than ${MOST_LINES} lines`, async (t) => {
  const wrong = sources
    .filter(({ path }) => path.endsWith('.ts') && !path.startsWith('test/'))
    .flatMap((source) => functionsThat(isLong, source))
  t.same(wrong, [])
})

t.test(`no function takes more than ${MOST_PARAMETERS} parameters by their position`, async (t) => {
  const wrong = sources
    .filter(({ path }) => path.endsWith('.ts'))
    .flatMap((source) => functionsThat(takesMany, source))
  t.same(wrong, [])
})

function isLong({ loc }: AnyNode): boolean {
  return (loc?.end.line ?? 0) - (loc?.start.line ?? 0) >= MOST_LINES
}

function takesMany(node: AnyNode): boolean {
  return 'params' in node && node.params.length > MOST_PARAMETERS
}

function functionsThat(is: (node: AnyNode) => boolean, { path, text }: Source): readonly string[] {
  const options = { ecmaVersion: 'latest', sourceType: 'module', locations: true } as const
  const found: string[] = []
  visit(parse(stripTypeScriptTypes(text), options), '', (node, name) => {
    if (is(node)) found.push(`${path}:${name}`)
  })
  return found
}

/** Calls `each` with every function below a node and its declared name. */
function visit(node: AnyNode, name: string, each: (node: AnyNode, name: string) => void): void {
  const declared = nameOf(node) ?? name
  if (/Function/.test(node.type)) each(node, declared)
  for (const value of Object.values(node)) {
    for (const child of Array.isArray(value) ? value : [value]) {
      if (typeof child?.type === 'string') visit(child, declared, each)
    }
  }
}

function nameOf(node: AnyNode): string | undefined {
  const declared = 'id' in node ? node.id : 'key' in node ? node.key : undefined
  const isName = declared?.type === 'Identifier' || declared?.type === 'PrivateIdentifier'
  return isName ? declared.name : undefined
}

t.test(`no folder has more than ${MOST_ENTRIES} entries`, async (t) => {
  const entries = new Map<string, Set<string>>()
  for (const { path } of sources) {
    const parts = path.split('/')
    for (let depth = 1; depth < parts.length; depth++) {
      const folder = parts.slice(0, depth).join('/')
      entries.set(folder, (entries.get(folder) ?? new Set()).add(parts[depth] ?? ''))
    }
  }
  const wrong = [...entries].filter(([, names]) => names.size > MOST_ENTRIES)
  t.same(
    wrong.map(([folder]) => folder),
    [],
  )
})
