/** The lint rejects a folder that gets more wordings with a plainer form. */
import t from 'tap'
import { findWordingFaults } from '../../../scripts/lint/prose.ts'

const check = (text: string, accepted = 1) =>
  findWordingFaults([{ path: 'scripts/greet.ts', text }], { scripts: accepted })

const one = `// ${'no'}body knows it\n`

t.test('accepts as many wordings as before', async (t) => {
  t.same(check(one), [])
})

t.test('rejects another one, and lists the places', async (t) => {
  const [first, second, summary] = check(
    `${one}throw new Error('The server ${'to'}ld us about it')\n`,
  )
  t.match(first, /^scripts\/greet\.ts:1 /)
  t.match(second, /^scripts\/greet\.ts:2 ".*": reports, returns/)
  t.equal(summary, 'scripts: 2 wordings with a plainer form, 1 accepted')
})

t.test('ignores code, and texts without a sentence', async (t) => {
  t.same(check(`const ${'nobo'}dy = 'peer'\nconst list = "${'what'}"\n`, 0), [])
})
