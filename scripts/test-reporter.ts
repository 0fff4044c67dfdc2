/**
 * The report of `npm test`: a line for each file that has ended, and at the end the failed assertions and the totals.
 * tap's reporters also draw the running files after each assertion, which takes much of the CPU of a run.
 */
import type { ChildProcess } from 'node:child_process'
import type { EventEmitter } from 'node:events'
import { inspect, styleText } from 'node:util'

interface Failure {
  readonly fullname: string
  readonly diag?: Readonly<Record<string, unknown>> | null
}

/** A running test file, as tap describes it. */
interface TestFile extends EventEmitter {
  readonly name: string
  /** Milliseconds. */
  readonly time: number
  readonly counts: { readonly total: number; readonly fail: number; readonly skip: number }
  readonly lists: { readonly fail: readonly Failure[] }
  readonly options: { readonly exitCode?: number | null; readonly signal?: string | null }
  readonly parser: EventEmitter
  readonly proc?: ChildProcess
  passing(): boolean
}

interface Run extends EventEmitter {
  readonly parser: EventEmitter
}

/** tap imports the default export, and calls it once, as a component that shows nothing. */
export default function Report({ test }: { readonly test: Run }): null {
  const failed: TestFile[] = []
  const comments: string[] = []
  test.on('subtestStart', (file: TestFile) => {
    const write = (text: unknown) => process.stdout.write(`${file.name}: ${text}`)
    const follow = ({ stderr }: ChildProcess) => stderr?.on('data', write)
    if (file.proc) follow(file.proc)
    else file.once('process', follow)
    file.parser.on('extra', write)
  })
  // Its process has ended, so its exit code is known.
  test.on('subtestEnd', (file: TestFile) => {
    if (!file.passing()) failed.push(file)
    console.log(line(file))
  })
  test.parser.on('comment', (text: string) => comments.push(text.trimEnd()))
  test.once('complete', () => {
    for (const file of failed) console.log(`\n${[line(file), ...explain(file)].join('\n\n')}`)
    console.log(`\n${comments.filter((text) => text !== '').join('\n')}`)
  })
  return null
}

function line(file: TestFile): string {
  const { name, counts, time } = file
  const badge = file.passing() ? styleText('green', 'PASS') : styleText('red', 'FAIL')
  const result = file.passing() ? `${counts.total} OK` : `${counts.fail} failed of ${counts.total}`
  const skipped = counts.skip > 0 ? ` (${counts.skip} skipped)` : ''
  return ` ${badge}  ${name} ${result}${skipped} ${(time / 1000).toFixed(1)}s`
}

/** Returns the failed assertions, each with its difference and its place, and the end of a process that failed. */
function explain({ lists, options: { exitCode, signal } }: TestFile): readonly string[] {
  const end = signal ?? (exitCode ? `exit code ${exitCode}` : undefined)
  return [
    ...lists.fail.map(({ fullname, diag }) => `✖ ${fullname}\n${details(diag ?? {})}`),
    ...(end === undefined ? [] : [`✖ ${end}`]),
  ]
}

function details({ diff, stack, ...rest }: Readonly<Record<string, unknown>>): string {
  // The stack has the place, and the difference both values.
  const hidden = ['at', 'source', ...(diff ? ['found', 'wanted'] : [])]
  const values = Object.entries(rest).filter(([name]) => !hidden.includes(name))
  const others = values.length > 0 ? inspect(Object.fromEntries(values), { depth: 9 }) : ''
  return [diff, others, stack]
    .map((text) => String(text ?? '').trimEnd())
    .filter((text) => text !== '')
    .join('\n')
}
