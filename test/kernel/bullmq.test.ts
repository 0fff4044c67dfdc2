/** The product uses only the public API of BullMQ, not its keys or scripts. */
import { readdirSync, readFileSync } from 'node:fs'
import { join, posix } from 'node:path'
import t from 'tap'

const ROOT = join(import.meta.dirname, '../..')
const SELF = 'test/kernel/bullmq.test.ts'
const files = ['shared', 'server', 'worker', 'scripts', 'test']
  .flatMap((folder) =>
    readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' }).map((path) =>
      posix.join(folder, path),
    ),
  )
  .filter((path) => /\.(ts|tsx|cjs)$/.test(path) && path !== SELF)
const texts = files.map((path) => ({ path, text: readFileSync(join(ROOT, path), 'utf8') }))

/** https://docs.bullmq.io: queues, workers, jobs, and the errors of a processor that moved its job. */
const PUBLIC = new Set([
  'Queue',
  'Worker',
  'Job',
  'DelayedError',
  'WaitingError',
  'UnrecoverableError',
])

t.test('only what the manual names is imported', (t) => {
  const imports = texts.flatMap(({ path, text }) =>
    Array.from(text.matchAll(/import (?:type )?\{([^}]*)\} from '(bullmq[^']*)'/g), (match) => {
      const [, names = '', module = ''] = match
      return names
        .split(',')
        .map((name) => name.replace(/\btype\b/, '').trim())
        .filter((name) => name !== '')
        .map((name) => ({ path, module, name }))
    }).flat(),
  )
  t.ok(imports.some(({ name }) => name === 'Worker'))
  t.same(
    imports.filter(({ module, name }) => module !== 'bullmq' || !PUBLIC.has(name)),
    [],
  )
  const others = texts.filter(({ text }) =>
    /(import|require)\(['"]bullmq|from 'bullmq\//.test(text),
  )
  t.same(
    others.map(({ path }) => path),
    [],
  )
  t.end()
})

/** Parts of internal keys, after a queue or job name; script names; and access to either. */
const INTERNAL = [
  /(\}|bots-a?sync|requests|export|import):(wait|active|prioritized|delayed|paused|meta|pc|marker|stalled|stalled-check|events|lock)\b/,
  /\b(moveToActive|moveToFinished|moveStalledJobsToWait|addStandardJob|addPrioritizedJob)\b/,
  /\.(toKey|runCommand|defineCommand)\(/,
  /\b(queue|worker|job|line)\.(backend|scripts|client)\b/,
  /extends (Worker|Queue|Job)\b/,
]

t.test('no text names its keys, scripts or parts', (t) => {
  const named = texts.flatMap(({ path, text }) =>
    text
      .split('\n')
      .filter((line) => INTERNAL.some((pattern) => pattern.test(line)))
      .map((line) => `${path}: ${line.trim()}`),
  )
  t.same(named, [])
  t.end()
})
