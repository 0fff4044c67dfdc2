/** Reads the report that a test file prints, in TAP. */

export interface Counts {
  readonly passed: number
  readonly failed: number
}

/** A report closes with `# { total: 16, pass: 8, fail: 4, todo: 2, skip: 2 }`; undefined: it was cut short. */
export function readSummary(report: string): Counts | undefined {
  const line = [...report.matchAll(/^# \{ total: \d.*\}$/gm)].at(-1)?.[0]
  if (line === undefined) return undefined
  const count = (name: string) => Number(new RegExp(`${name}: (\\d+)`).exec(line)?.[1] ?? 0)
  return { passed: count('pass'), failed: count('fail') }
}

/** Every failed assertion with its difference and its place; not the tests around it. */
export function readFailures(report: string): string[] {
  const failures: string[] = []
  const lines = report.split('\n')
  let isParent = false
  for (let index = 0; index < lines.length; index++) {
    const line = lines[index] ?? ''
    // The plan of an inner test: the next point is that test itself.
    if (/^ +1\.\.\d+/.test(line)) isParent = true
    if (!/^ *(not )?ok \d+/.test(line)) continue
    const end = endOfDetails(lines, index)
    if (/^ *not ok/.test(line) && !isParent && !/# (TODO|SKIP)/i.test(line)) {
      failures.push(lines.slice(index, end).join('\n'))
    }
    isParent = false
    index = end - 1
  }
  return failures
}

function endOfDetails(lines: readonly string[], point: number): number {
  const indent = /^ */.exec(lines[point + 1] ?? '')?.[0] ?? ''
  if (lines[point + 1] !== `${indent}---`) return point + 1
  const end = lines.indexOf(`${indent}...`, point)
  return end === -1 ? lines.length : end + 1
}
