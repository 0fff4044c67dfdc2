/** CPU time of the bench's processes, from /proc (Linux). */
import { readdirSync, readFileSync } from 'node:fs'

/** The kernel reports in hundredths of a second, regardless of its own clock. */
const TICK_US = 10_000

/**
 * Returns user and system time in microseconds of living descendants whose command line `isCounted`, and of their ended
 * children.
 */
export function descendantsCpuUs(isCounted = (_command: string): boolean => true): number {
  const parents = new Map<number, number>()
  const used = new Map<number, number>()
  for (const name of readdirSync('/proc')) {
    const fields = readProcessStat(Number(name))
    if (fields === undefined) continue
    parents.set(Number(name), Number(fields[1]))
    const ticks = fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0)
    used.set(Number(name), ticks * TICK_US)
  }
  const counted = [...used].filter(
    ([pid]) => isDescendant(pid, parents) && isCounted(readCommandLine(pid)),
  )
  return counted.reduce((sum, [, us]) => sum + us, 0)
}

function readCommandLine(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'latin1')
  } catch {
    return ''
  }
}

/** Returns the fields after the command, which may contain spaces and brackets (proc(5)). */
function readProcessStat(pid: number): string[] | undefined {
  if (!Number.isInteger(pid)) return undefined
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
    return text.slice(text.lastIndexOf(')') + 2).split(' ')
  } catch {
    return undefined
  }
}

function isDescendant(pid: number, parents: ReadonlyMap<number, number>): boolean {
  for (let at = parents.get(pid); at !== undefined && at > 1; at = parents.get(at)) {
    if (at === process.pid) return true
  }
  return false
}
