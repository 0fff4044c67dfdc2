/** Names in comments must exist, so that no comment keeps an old name. */
import type { Source } from './sources.ts'

const COMMENT = /\/\*[\s\S]*?\*\/|(?:^[ \t]*\/\/.*\n)+/gm
const COMMENT_LINE = /^[ \t]*(?:\/\*|\*|\/\/).*$/gm
/** Words of several parts: others may be plain English. */
const NAME = /\b[A-Za-z][a-z0-9]*[A-Z][A-Za-z0-9]*\b/g
const QUOTED = /`([a-z]+[A-Z][A-Za-z0-9]*)`/g
const ERRORS = /\bErrors:([\s\S]*)/
const CLASS = /\b(?:[A-Z][a-z]+){2,}\b/g
const FILE = /(?<![\w/.*-])[\w-]+(?:\/[\w-]+)*\.ts\b/g

/** Returns a line for each name of a function, an error or a file that neither the code nor a page has. */
export function findUnknownNames(sources: readonly Source[]): readonly string[] {
  const known = new Set(sources.flatMap(({ path, text }) => namesIn(path, text)))
  const files = new Set(sources.flatMap(({ path }) => endings(path)))
  return sources
    .filter(({ path }) => path.endsWith('.ts'))
    .flatMap(({ path, text }) =>
      [...text.matchAll(COMMENT)].flatMap(([comment]) => {
        const names = [
          ...[...comment.matchAll(QUOTED)].map(([, name = '']) => name),
          ...(ERRORS.exec(comment)?.[1]?.match(CLASS) ?? []),
        ].filter((name) => !known.has(name))
        const missing = (comment.match(FILE) ?? []).filter((file) => !files.has(file))
        return [...names, ...missing].map((name) => `${path}: there is no ${name}`)
      }),
    )
}

function namesIn(path: string, text: string): readonly string[] {
  const code = path.endsWith('.md') ? text : text.replace(COMMENT_LINE, '')
  return code.match(NAME) ?? []
}

/** Returns the path, and each part of it that ends with the file's name. */
function endings(path: string): readonly string[] {
  const parts = path.split('/')
  return parts.map((_, i) => parts.slice(i).join('/'))
}
