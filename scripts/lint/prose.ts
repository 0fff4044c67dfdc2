/** Plain language: pages by retext, and wordings that have a plainer form in pages, comments and messages. */
import { retext } from 'retext'
import repeatedWords from 'retext-repeated-words'
import simplify from 'retext-simplify'
import type { Source } from './sources.ts'

/** Accepted technical terms and phrases. */
const TERMS = [
  'accurate',
  'address',
  'all of',
  'as to',
  'attempt',
  'authorize',
  'delete',
  'effect',
  'encounter',
  'function',
  'interface',
  'it is',
  'multiple',
  'operate',
  'parameters',
  'remain',
  'request',
  'selection',
  'there are',
  'there is',
  'type',
  'validate',
]
const linter = retext().use(simplify, { ignore: TERMS }).use(repeatedWords)

/** Blanks code and keeps line numbers. */
function blankCode(markdown: string): string {
  return markdown
    .replace(/^```[\s\S]*?^```$/gm, (block) => block.replace(/[^\n]/g, ''))
    .replace(/`[^`\n]*`/g, 'X')
    .replace(/\]\([^)]*\)/g, ']')
}

/** Returns a line for each fault of the pages: its place and the plainer word. */
export async function findPageFaults(sources: readonly Source[]): Promise<readonly string[]> {
  const pages = sources.filter(({ path }) =>
    /^(docs\/.*|README|CONTRIBUTING|SECURITY)\.md$/.test(path),
  )
  const faults = await Promise.all(
    pages.map(async ({ path, text }) => {
      const { messages } = await linter.process(blankCode(text))
      return messages.map(({ line, reason }) => `${path}:${line} ${reason}`)
    }),
  )
  return faults.flat()
}

interface Rule {
  readonly pattern: RegExp
  readonly advice: string
  /** Applies to whole lines of code; the other rules apply to prose. */
  readonly isForCode?: true
}

const RULES: readonly Rule[] = [
  { pattern: /\b(?:what|whom?)\b(?! (?:follows|kind|type|if)\b)/i, advice: 'name the noun' },
  {
    pattern: /\b(?:who(?:m)?ever|whatever|nobody|somebody)\b/i,
    advice: 'anyone, the caller, no one',
  },
  { pattern: /\b(?:tells?|told|says?|said)\b/i, advice: 'reports, returns, names, shows' },
  { pattern: /\bmend(?:s|ed|ing)?\b/i, advice: 'fix' },
  { pattern: /\b(?:anew|hither|therefrom|wherein)\b/i, advice: 'again, here, from it, in which' },
  { pattern: /\bbeside\b/i, advice: 'next to, alongside' },
  { pattern: /\b(?:nothing|all|or) else\b/i, advice: 'otherwise, the rest' },
  {
    pattern: /(?<!\bthere )\b(?:is|are|was|were|be) no (?!longer\b|more\b|such\b|op\b)/i,
    advice: 'is not a, has no',
  },
  { pattern: /\bof (?:one|its|their|his|her)(?:'s)? own\b/i, advice: 'a separate, its' },
  { pattern: /\bpeers?\b/i, advice: 'Medplum, the other server' },
  {
    pattern: /^\s*(?:\/\*\*|\*|\/\/)\s+(?:Undefined:|The same,|(?:Of|As|Those|That|Whose) )/,
    advice: 'begin with the verb',
    isForCode: true,
  },
  {
    pattern: /\b(?:function|const) \w+Of\b/,
    advice: 'begin the name with a verb',
    isForCode: true,
  },
  {
    pattern: /^\s*(?:await )?t(?:\.test)?\(\s*['"`](?:what|who|whose|whom|of|as) /i,
    advice: 'name the behaviour',
    isForCode: true,
  },
]

/** Wordings that are older than the rules, by folder. Lower a number after rewording some. */
const ACCEPTED: Readonly<Record<string, number>> = {
  docs: 8,
  scripts: 5,
  server: 5,
  shared: 8,
  test: 40,
}

/** Returns the places of a folder that has more wordings with a plainer form than are accepted. */
export function findWordingFaults(
  sources: readonly Source[],
  accepted = ACCEPTED,
): readonly string[] {
  const byFolder = Map.groupBy(sources, ({ path }) => /^(.+?)\//.exec(path)?.[1] ?? '.')
  return [...byFolder].flatMap(([folder, files]) => {
    const most = accepted[folder] ?? 0
    const places = files.flatMap(findWordings)
    const summary = `${folder}: ${places.length} wordings with a plainer form, ${most} accepted`
    return places.length > most ? [...places, summary] : []
  })
}

function findWordings({ path, text }: Source): readonly string[] {
  if (/\/(?:generated|decisions)\//.test(path)) return []
  return text.split('\n').flatMap((line, index) => {
    const prose = extractProse(path, line)
    const broken = RULES.filter(({ pattern, isForCode }) => pattern.test(isForCode ? line : prose))
    return broken.map(({ pattern, advice }) => {
      const [word = ''] = pattern.exec(line) ?? []
      return `${path}:${index + 1} "${word.trim()}": ${advice}`
    })
  })
}

/** Returns the prose of a line: all of a page, otherwise comments and texts of several words. */
function extractProse(file: string, line: string): string {
  if (file.endsWith('.md') || /^\s*(?:\/\*\*?|\*|\/\/)/.test(line)) return line
  const texts = Array.from(line.matchAll(/(['"`])((?:(?!\1).){12,})\1/g), ([, , text = '']) => text)
  const isSentence = (text: string) =>
    /\w \w+ \w/.test(text) && !/\b(?:select|insert|from|where|redis\.call)\b/i.test(text)
  return [/\/\/ .*$/.exec(line)?.[0] ?? '', ...texts.filter(isSentence)].join(' ')
}
