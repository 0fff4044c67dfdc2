/** Checks the plain language of the pages with retext. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { retext } from 'retext'
import repeatedWords from 'retext-repeated-words'
import simplify from 'retext-simplify'
import t from 'tap'
import { allPages, ROOT } from './page.ts'

/** Accepted technical terms and phrases. */
const TERMS = [
  'accurate',
  'address',
  'all of',
  'as to',
  'attempt',
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
]
const linter = retext().use(simplify, { ignore: TERMS }).use(repeatedWords)

/** Blanks code and keeps line numbers. */
function proseOf(markdown: string): string {
  return markdown
    .replace(/^```[\s\S]*?^```$/gm, (block) => block.replace(/[^\n]/g, ''))
    .replace(/`[^`\n]*`/g, 'X')
    .replace(/\]\([^)]*\)/g, ']')
}

for (const page of allPages()) {
  t.test(`${page} is plain`, async (t) => {
    const { messages } = await linter.process(proseOf(readFileSync(join(ROOT, page), 'utf8')))
    t.same(
      messages.map(({ line, reason }) => `${page}:${line} ${reason}`),
      [],
    )
  })
}
