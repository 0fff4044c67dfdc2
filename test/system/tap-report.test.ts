import { join } from 'node:path'
import t from 'tap'
import { runFiles } from '../../scripts/test/files.ts'
import {
  countAssertions,
  readFailures,
  readSections,
  readSummary,
} from '../../scripts/test/tap-report.ts'

const REPORT = `TAP version 14
1..1
# Subtest: test/x.test.ts
    # Subtest: a test
        ok 1 - should be equal
        not ok 2 - should match pattern
          ---
          diff: |
            -  "a": 2,
            not ok 7 - only text
          ...
        not ok 3 - later # TODO
        1..3
    not ok 1 - a test # time=34.009ms
      ---
      at:
        fileName: test/x.test.ts
      ...
    # Subtest: thrown
        not ok 1 - boom
        1..1
    not ok 2 - thrown
    1..2
not ok 1 - test/x.test.ts # time=40ms

# Subtest: test/y.test.ts
    ok 1 - inner # time=1ms
    1..1
ok 2 - test/y.test.ts # time=700.5ms

# { total: 4, pass: 1, fail: 2, todo: 1 }
# time=820.456ms
`

t.test('reads the counts of the closing comment', async (t) => {
  t.same(readSummary(REPORT), { passed: 1, failed: 2 })
  t.same(readSummary('# { total: 4, pass: 4 }\n'), { passed: 4, failed: 0 })
})

t.test('reads no counts from a truncated report', async (t) => {
  t.equal(readSummary('TAP version 14\n    ok 1 - x\n'), undefined)
})

t.test('lists failed assertions without their enclosing tests', async (t) => {
  const failures = readFailures(REPORT)
  t.equal(failures.length, 2)
  t.match(failures[0], /should match pattern[\s\S]*"a": 2/)
  t.match(failures[1], /boom/)
})

t.test('separates counts and failures of several files in one report', async (t) => {
  const sections = readSections(REPORT)
  const counts = [...sections].map(([file, { text, ms }]) => [file, ms, countAssertions(text)])
  t.same(counts, [
    ['test/x.test.ts', 40, { passed: 1, failed: 2 }],
    ['test/y.test.ts', 700.5, { passed: 1, failed: 0 }],
  ])
  const cut = REPORT.slice(0, REPORT.indexOf('ok 2 - test/y'))
  t.same([...readSections(cut).keys()], ['test/x.test.ts'])
})

t.test('runs all tests of several files, each under its file', async (t) => {
  const folder = t.testdir({
    'a.test.ts': "import t from 'tap'; t.test('one', async (t) => { t.ok(1); t.ok(true) })",
    'b.test.ts':
      "import t from 'tap'; t.teardown(() => t.pass); t.test('two', async (t) => t.equal(1, 2))",
    'aside.test.ts': `import t from 'tap'
      t.test('ends', async (t) => { t.ok(true) })
      t.test('runs', () => new Promise((resolve) => {
        void Promise.resolve().then(() => { throw new Error('aside') })
        setTimeout(resolve, 100)
      }))
      t.test('follows', async (t) => { t.ok(true) })`,
    'c.test.ts': "import t from 'tap'; t.ok(true); throw new Error('at the top')",
  })
  const files = ['a', 'b', 'aside', 'c'].map((name) => join(folder, `${name}.test.ts`))
  const ends: unknown[] = []
  await runFiles([files], {
    cwd: process.cwd(),
    env: { ...process.env },
    jobs: 1,
    isBail: false,
    signal: new AbortController().signal,
    onEnd: ({ passed, failed }) => ends.push([passed, failed]),
  })
  t.same(ends, [
    [2, 0],
    [0, 1],
    [2, 1],
    [1, 1],
  ])
})
