/** The documents name the limits that the code enforces. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { limitsTable } from '../../scripts/bot-limits.ts'

t.test('docs/bots.md has the limits as the code has them', (t) => {
  const text = readFileSync(new URL('../../docs/bots.md', import.meta.url), 'utf8')
  const [, table = ''] =
    /<!-- node scripts\/bot-limits\.ts -->([\s\S]*)<!-- end -->/.exec(text) ?? []
  t.equal(table.trim(), limitsTable(), 'run node scripts/bot-limits.ts')
  t.end()
})
