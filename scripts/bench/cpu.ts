/** CPU time of the processes that a bench started, from /proc (Linux). */
import { readdirSync, readFileSync } from 'node:fs'

/** The kernel reports in hundredths of a second, whatever its own clock. */
const TICK_US = 10_000

/** User and system time in microseconds of every living descendant of this process. */
export function descendantsCpuUs(): number {
  const parents = new Map<number, number>()
  const used = new Map<number, number>()
  for (const name of readdirSync('/proc')) {
    const pid = Number(name)
    if (!Number.isInteger(pid)) continue
    const fields = statOf(pid)
    if (fields === undefined) continue
    parents.set(pid, Number(fields[1]))
    used.set(pid, (Number(fields[11]) + Number(fields[12])) * TICK_US)
  }
  let sum = 0
  for (const [pid, us] of used) if (isDescendant(pid, parents)) sum += us
  return sum
}

/** The fields after the command, which may hold spaces and brackets itself (proc(5)). */
function statOf(pid: number): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
    return text.slice(text.lastIndexOf(')') + 2).split(' ')
  } catch {
    // The process ended meanwhile.
    return undefined
  }
}

function isDescendant(pid: number, parents: ReadonlyMap<number, number>): boolean {
  for (let at = parents.get(pid); at !== undefined && at > 1; at = parents.get(at)) {
    if (at === process.pid) return true
  }
  return false
}
