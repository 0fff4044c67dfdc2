/** Links between documents lead to existing pages and headings. */
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import t from 'tap'
import { allPages, ROOT } from './page.ts'

const LINK = /\]\(([^)\s]+)\)/g

/** Returns the anchor of a heading on sites and GitHub. */
function anchorsOf(text: string): readonly string[] {
  return Array.from(text.matchAll(/^#+ (.*)$/gm), ([, heading = '']) =>
    heading
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\s-]/gu, '')
      .trim()
      .replaceAll(' ', '-'),
  )
}

function isBroken(page: string, link: string): boolean {
  if (/^https?:/.test(link)) return false
  const [path = '', anchor] = link.split('#')
  const target = path === '' ? page : normalize(join(dirname(page), path))
  if (!existsSync(join(ROOT, target))) return true
  if (anchor === undefined) return false
  return !anchorsOf(readFileSync(join(ROOT, target), 'utf8')).includes(anchor)
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
