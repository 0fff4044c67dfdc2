/** Reads the TAP report of a test file. */

export interface Counts {
  readonly passed: number
  readonly failed: number
}

/** Parses the final `# { total: 16, pass: 8, fail: 4, todo: 2, skip: 2 }`; undefined if cut short. */
export function readSummary(report: string): Counts | undefined {
  const line = [...report.matchAll(/^# \{ total: \d.*\}$/gm)].at(-1)?.[0]
  if (line === undefined) return undefined
  const count = (name: string) => Number(new RegExp(`${name}: (\\d+)`).exec(line)?.[1] ?? 0)
  return { passed: count('pass'), failed: count('fail') }
}

export interface Section {
  readonly text: string
  readonly ms: number
}

export function readSections(report: string): ReadonlyMap<string, Section> {
  const section = /^# Subtest: (\S+)\n([\s\S]*?)^(?:not )?ok \d+ - \1 # time=([\d.]+)ms$/gm
  const found = report.matchAll(section)
  return new Map([...found].map(([, file = '', text = '', ms]) => [file, { text, ms: Number(ms) }]))
}

export function readCpu(report: string, file: string): number {
  const comments = report.matchAll(/^# cpu (\S+): ([\d.]+)$/gm)
  const seconds = [...comments].findLast(([, path = '']) => path.endsWith(file))?.[2]
  return Number(seconds ?? 0)
}

export function countAssertions(report: string): Counts {
  const counts = { passed: 0, failed: 0 }
  for (const { result } of assertions(report)) if (result !== 'left') counts[result] += 1
  return counts
}

export function readFailures(report: string): string[] {
  return [...assertions(report)].flatMap(({ result, text }) => (result === 'failed' ? text : []))
}

interface Assertion {
  readonly result: 'passed' | 'failed' | 'left'
  readonly text: string
}

function* assertions(report: string): Generator<Assertion> {
  const lines = report.split('\n')
  let isParent = false
  for (let index = 0; index < lines.length; index++) {
    const line = lines[index] ?? ''
    if (/^ +1\.\.\d+/.test(line)) isParent = true
    if (!/^ *(not )?ok \d+/.test(line)) continue
    const end = endOfDetails(lines, index)
    const isLeft = /# (TODO|SKIP)/i.test(line)
    const result = isLeft ? 'left' : /^ *not ok/.test(line) ? 'failed' : 'passed'
    if (!isParent) yield { result, text: lines.slice(index, end).join('\n') }
    isParent = false
    index = end - 1
  }
}

function endOfDetails(lines: readonly string[], point: number): number {
  const indent = /^ */.exec(lines[point + 1] ?? '')?.[0] ?? ''
  if (lines[point + 1] !== `${indent}---`) return point + 1
  const end = lines.indexOf(`${indent}...`, point)
  return end === -1 ? lines.length : end + 1
}
