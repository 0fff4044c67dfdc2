/** Reference pages match the code, and every setting has a meaning. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { referencePages } from '../../scripts/reference/pages.ts'
import { describeSettings } from '../../shared/core/config/config.ts'
import { settingDescriptions } from '../../shared/core/config/meanings.ts'
import { openBotica } from '../fixtures/botica.ts'

const FOLDER = join(import.meta.dirname, '../../docs/reference')

t.test('has no stale page', async (t) => {
  const pages = referencePages()
  for (const [name, text] of Object.entries(pages)) {
    t.equal(readFileSync(join(FOLDER, name), 'utf8'), text, `${name}: npm run reference`)
  }
  t.same(readdirSync(FOLDER).sort(), [...Object.keys(pages), 'index.md'].sort())
})

t.test('each setting has a meaning, in the order in which they are read', async (t) => {
  t.same(Object.keys(settingDescriptions), [...describeSettings().keys()])
})

t.test('the page of metrics names those that web answers', async (t) => {
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
