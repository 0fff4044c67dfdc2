/** Logs and responses of bots reach a terminal as text, never as control sequences. */
import t from 'tap'
import { escapeControlCharacters } from '../../../scripts/cli/print.ts'

t.test('control characters are replaced', (t) => {
  const attacks = [
    '\u001b]0;another title\u0007',
    '\u001b[2J\u001b[H',
    '\u001b]52;c;Y3VybCBldmlsIHwgc2g=\u0007',
    '\u009b31m',
    'covered\b\b\b\b\b\b\b',
  ]
  for (const attack of attacks) {
    t.notMatch(escapeControlCharacters(attack), /[^\P{Cc}\n\t]/u, JSON.stringify(attack))
  }
  t.equal(
    escapeControlCharacters('Grüße 🙂\n\t{"a": 1}\n'),
    'Grüße 🙂\n\t{"a": 1}\n',
    'keeps other text',
  )
  t.end()
})
