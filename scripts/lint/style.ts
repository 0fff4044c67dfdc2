/** Rules that Biome does not have: for comments, sizes of functions and folders, and imports of tests. */
import { stripTypeScriptTypes } from 'node:module'
import { type AnyNode, type Comment, parse, tokenizer } from 'acorn'
import type { Source } from './sources.ts'

const PRODUCT = /^(server|worker|shared)\//
const MOST_LINES = 60
const MOST_ENTRIES = 25

/** Openings without a clear subject. */
const NO_SUBJECT = /^(Of|What|Who|Whom|Whose|Those|That)\b/
const RETIRED = /\b(owed|untold|[tT]old|telling|tells of|asked of|[a-z-]+\.md §[\d.]+)/

/** Tests of functions are in test/unit; others use the service as its clients do, or give the reason. */
const OVER_HTTP = /^test\/(?:api|system)\/.*\.test\.ts$/
const IMPORT = /^(?:import\b.*|\}) from '(?:\.\.\/)+(?:server|shared|worker)\//m
const REASON = /^\/\*\*(?:(?!\*\/)[\s\S])*\bImports\s/

/** Returns a line for each fault: its place and the rule. */
export function findStyleFaults(sources: readonly Source[]): readonly string[] {
  return [
    ...sources.flatMap(findCommentFaults),
    ...sources.filter(({ path }) => /^(?!test\/).*\.ts$/.test(path)).flatMap(findLongFunctions),
    ...findLargeFolders(sources),
    ...sources
      .filter(({ path, text }) => OVER_HTTP.test(path) && IMPORT.test(text) && !REASON.test(text))
      .map(({ path }) => `${path}: use HTTP, or begin the file with "Imports …" and the reason`),
  ]
}

function findCommentFaults(source: Source): readonly string[] {
  const { path, text } = source
  const hasOpening = !PRODUCT.test(path) || /^(#!.*\n)?\s*(\/\*|\/\/)/.test(text)
  const faults = extractComments(source).flatMap((comment) => {
    const line = `${path}: ${comment.split('\n')[0]}`
    if (NO_SUBJECT.test(comment)) return [`${line}: begin with a subject`]
    return RETIRED.test(comment)
      ? [`${line}: use plain words, name no document that is not here`]
      : []
  })
  return hasOpening ? faults : [`${path}: open the file with a comment`, ...faults]
}

/** Returns each block, and each run of line comments, without markers. */
function extractComments({ path, text }: Source): readonly string[] {
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

/** Tests may have long functions. Biome's rule does not count all lines. */
function findLongFunctions({ path, text }: Source): readonly string[] {
  const options = { ecmaVersion: 'latest', sourceType: 'module', locations: true } as const
  const faults: string[] = []
  visit(parse(stripTypeScriptTypes(text), options), '', (node, name) => {
    if (isLong(node)) faults.push(`${path}: ${name} has more than ${MOST_LINES} lines`)
  })
  return faults
}

function isLong({ loc }: AnyNode): boolean {
  return (loc?.end.line ?? 0) - (loc?.start.line ?? 0) >= MOST_LINES
}

/** Calls `each` with every function below a node and its declared name. */
function visit(node: AnyNode, name: string, each: (node: AnyNode, name: string) => void): void {
  const declared = functionName(node) ?? name
  if (/Function/.test(node.type)) each(node, declared)
  for (const value of Object.values(node)) {
    for (const child of Array.isArray(value) ? value : [value]) {
      if (typeof child?.type === 'string') visit(child, declared, each)
    }
  }
}

function functionName(node: AnyNode): string | undefined {
  const declared = 'id' in node ? node.id : 'key' in node ? node.key : undefined
  const isName = declared?.type === 'Identifier' || declared?.type === 'PrivateIdentifier'
  return isName ? declared.name : undefined
}

function findLargeFolders(sources: readonly Source[]): readonly string[] {
  const entries = new Map<string, Set<string>>()
  for (const { path } of sources) {
    const parts = path.split('/')
    for (let depth = 1; depth < parts.length; depth++) {
      const folder = parts.slice(0, depth).join('/')
      entries.set(folder, (entries.get(folder) ?? new Set()).add(parts[depth] ?? ''))
    }
  }
  const large = [...entries].filter(([, names]) => names.size > MOST_ENTRIES)
  return large.map(([folder]) => `${folder}: has more than ${MOST_ENTRIES} entries`)
}
