/** Every file named in a document exists. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'

const ROOT = join(import.meta.dirname, '../../..')
const DOCUMENTS = [
  'README.md',
  'CONTRIBUTING.md',
  'SECURITY.md',
  'CHANGELOG.md',
  ...markdownIn('docs'),
]
/** A path from the root in backticks; a test may be named without its extension. */
const PATH = /`((?:server|worker|shared|scripts|test|docs|examples)\/[\w./-]+)`/g

function markdownIn(folder: string): string[] {
  const names = readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
  return names.filter((name) => name.endsWith('.md')).map((name) => `${folder}/${name}`)
}

for (const document of DOCUMENTS) {
  t.test(`${document} names files that are there`, async (t) => {
    const text = readFileSync(join(ROOT, document), 'utf8')
    const named = Array.from(text.matchAll(PATH), ([, path = '']) => path)
    t.same(
      named.filter((path) => ['', '.test.ts'].every((end) => !existsSync(join(ROOT, path + end)))),
      [],
    )
  })
}

t.test('the walk through RFC 9700 names files and tests that are there', async (t) => {
  const text = readFileSync(join(ROOT, 'docs/oauth-security.md'), 'utf8')
  const named = (pattern: RegExp) => Array.from(text.matchAll(pattern), ([, path = '']) => path)
  const files = named(/`((?:(?:auth|oauth)\/)?[\w-]+\.ts)`/g).map(
    (path) => `server/identity/${path}`,
  )
  const tests = named(/`((?:system\/)?(?:security|identity|platform)\/[\w-]+)`/g).map(
    (path) => `test/${path.startsWith('system/') ? path : `api/${path}`}.test.ts`,
  )
  t.ok(files.length > 20 && tests.length > 20)
  t.same(
    [...files, ...tests].filter((path) => !existsSync(join(ROOT, path))),
    [],
  )
})

t.test('each way of a request and each noun names at least one file', async (t) => {
  for (const document of ['docs/lifecycle.md', 'docs/concepts.md']) {
    const text = readFileSync(join(ROOT, document), 'utf8')
    const parts = document.endsWith('lifecycle.md')
      ? text.split(/^## /m).slice(1)
      : text.split('\n').filter((line) => /^\| [A-Z]/.test(line))
    for (const part of parts) t.ok(part.search(PATH) >= 0, part.slice(0, 40))
  }
})
