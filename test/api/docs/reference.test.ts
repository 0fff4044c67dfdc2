/**
 * Reference pages match the code, and every setting has a meaning. Imports the descriptions of settings, from which
 * the pages are made.
 */
import { globSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { settingDescriptions } from '../../../scripts/reference/meanings.ts'
import { badges, KEPT_TEXTS, referencePages } from '../../../scripts/reference/pages.ts'
import { describeSettings } from '../../../shared/core/config/config.ts'
import { openBotica } from '../../fixtures/botica.ts'

const ROOT = join(import.meta.dirname, '../../..')
const FOLDER = join(ROOT, 'docs/reference')

t.test('has no stale page', async (t) => {
  const pages = referencePages()
  for (const [name, text] of Object.entries(pages)) {
    t.equal(readFileSync(join(FOLDER, name), 'utf8'), text, `${name}: npm run reference`)
  }
  t.same(readdirSync(FOLDER).sort(), [...Object.keys(pages), 'index.md'].sort())
})

t.test('has no stale badge', async (t) => {
  for (const [name, text] of Object.entries(badges())) {
    const file = join(ROOT, 'docs/images', name)
    t.equal(readFileSync(file, 'utf8'), text, `${name}: npm run reference`)
  }
})

t.test('each setting has a meaning, in the order in which they are read', async (t) => {
  t.same(Object.keys(settingDescriptions), [...describeSettings().keys()])
})

t.test('the code has each documented error text', async (t) => {
  const files = globSync(['shared/**/*.ts', 'server/**/*.ts'], { cwd: ROOT })
  const code = files.map((file) => readFileSync(join(ROOT, file), 'utf8')).join('\n')
  for (const text of KEPT_TEXTS) t.ok(code.includes(`'${text}'`), text)
})

t.test('the metrics page lists the metrics of web', async (t) => {
  const { anonymous } = await openBotica(t)
  const { text } = await anonymous.get('/metrics')
  const named = [...text.matchAll(/^# TYPE (\w+) /gm)].map(([, name = '']) => name)
  const page = referencePages()['metrics.md'] ?? ''
  const own = named.filter((name) => !/^(process|nodejs|web|worker)_/.test(name))
  t.ok(own.length > 10)
  t.same(
    own.filter((name) => !page.includes(`\`${name}\``)),
    [],
  )
})
