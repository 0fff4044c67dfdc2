/** What scripts/test.ts wants to know of tap's raw report. */

export interface Counts {
  readonly passed: number
  readonly failed: number
}

/** tap closes its report with `# { total: 16, pass: 8, fail: 4, todo: 2, skip: 2 }`. */
export function readCounts(report: string): Counts {
  const summary = [...report.matchAll(/^# \{ total: \d.*\}$/gm)].at(-1)?.[0] ?? ''
  const count = (name: string) => Number(new RegExp(`${name}: (\\d+)`).exec(summary)?.[1] ?? 0)
  return { passed: count('pass'), failed: count('fail') }
}

/** How long each file took, the slowest first: `ok 1 - test/x.test.ts # time=40ms`. */
export function readTimes(report: string): { readonly file: string; readonly ms: number }[] {
  const found = report.matchAll(/^(?:not )?ok \d+ - (\S+\.test\.ts) # time=([\d.]+)ms$/gm)
  return [...found]
    .map(([, file = '', ms]) => ({ file, ms: Number(ms) }))
    .sort((a, b) => b.ms - a.ms)
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
