/** The documents name the limits that the code enforces. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { limitsTable } from '../fixtures/bots/limits-table.ts'

t.test('docs/bots.md has the limits as the code has them', (t) => {
  const text = readFileSync(new URL('../../docs/bots.md', import.meta.url), 'utf8')
  const [, table = ''] =
    /<!-- node test\/fixtures\/bots\/limits-table\.ts -->([\s\S]*)<!-- end -->/.exec(text) ?? []
  t.equal(table.trim(), limitsTable(), 'run node test/fixtures/bots/limits-table.ts')
  t.end()
})
