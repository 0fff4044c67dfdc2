/** Links between documents lead to existing pages and headings. */
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import t from 'tap'
import { allPages, ROOT } from '../../fixtures/page.ts'

const LINK = /\]\(([^)\s]+)\)/g

/** Returns the anchor of a heading on sites and GitHub. */
function listAnchors(text: string): readonly string[] {
  return Array.from(text.matchAll(/^#+ (.*)$/gm), ([, heading = '']) =>
    heading
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\s-]/gu, '')
      .trim()
      .replaceAll(' ', '-'),
  )
}

function isBroken(page: string, link: string): boolean {
  // A page of GitHub, relative to the repository's address there.
  if (/^https?:/.test(link) || link.startsWith('../../actions/')) return false
  const [path = '', anchor] = link.split('#')
  const target = path === '' ? page : normalize(join(dirname(page), path))
  if (!existsSync(join(ROOT, target))) return true
  if (anchor === undefined) return false
  return !listAnchors(readFileSync(join(ROOT, target), 'utf8')).includes(anchor)
}

t.test('resolves every link', async (t) => {
  for (const page of allPages()) {
    // Code may have brackets that look like links.
    const text = readFileSync(join(ROOT, page), 'utf8').replace(/^```[\s\S]*?^```$|`[^`\n]*`/gm, '')
    const links = Array.from(text.matchAll(LINK), ([, link = '']) => link)
    t.same(
      links.filter((link) => isBroken(page, link)),
      [],
      page,
    )
  }
})

const SECURITY_FOLDERS = [
  '',
  'test/api/access/',
  'test/api/security/',
  'test/api/security/guarded/',
  'test/api/security/sign-in/',
]

/** Returns the names in the last column of the tables whose head ends with "test". */
function testsNamedIn(text: string): readonly string[] {
  const tables = text.split('\n\n').filter((block) => /^\|.*\| test \|\n/.test(block))
  const rows = tables.flatMap((table) => table.split('\n').slice(2))
  return rows.flatMap((row) =>
    Array.from((row.split(' | ').at(-1) ?? '').matchAll(/`([^`]+)`/g), ([, name = '']) => name),
  )
}

t.test('names only tests that exist in the page on security', async (t) => {
  const names = testsNamedIn(readFileSync(join(ROOT, 'docs/security.md'), 'utf8'))
  t.ok(names.length > 100)
  const exists = (name: string) =>
    SECURITY_FOLDERS.some((folder) =>
      ['', '.test.ts'].some((ending) => existsSync(join(ROOT, folder, `${name}${ending}`))),
    )
  t.same(
    names.filter((name) => !exists(name)),
    [],
  )
})
