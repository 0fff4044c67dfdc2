/** Processor time and memory of the processes that a bench started, from /proc (Linux). */
import { readdirSync, readFileSync } from 'node:fs'

/** The kernel reports in hundredths of a second, whatever its own clock. */
const TICK_US = 10_000

/**
 * User and system time in microseconds of the living descendants of this process whose command line
 * `isCounted` (of all without it), with that of their children that ended.
 */
export function descendantsCpuUs(isCounted = (_command: string): boolean => true): number {
  const parents = new Map<number, number>()
  const used = new Map<number, number>()
  for (const name of readdirSync('/proc')) {
    const pid = Number(name)
    if (!Number.isInteger(pid)) continue
    const fields = statOf(pid)
    if (fields === undefined) continue
    parents.set(pid, Number(fields[1]))
    used.set(pid, sum(fields.slice(11, 15).map(Number)) * TICK_US)
  }
  const counted = [...used].filter(
    ([pid]) => isDescendant(pid, parents) && isCounted(commandOf(pid)),
  )
  return sum(counted.map(([, us]) => us))
}

/** Memory of a process and its descendants in MiB; pages that they share are counted once. */
export function familyMb(pid: number): number {
  const pids = readdirSync('/proc').map(Number).filter(Number.isInteger)
  const parents = new Map(pids.map((one) => [one, Number(statOf(one)?.[1] ?? 0)]))
  const family = pids.filter((one) => one === pid || isDescendant(one, parents, pid))
  return sum(family.map(residentMb))
}

function residentMb(pid: number): number {
  try {
    const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'latin1')
    return Number(/^Pss:\s+(\d+)/m.exec(text)?.[1] ?? 0) / 1024
  } catch {
    return 0
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((a, b) => a + b, 0)
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

function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'latin1')
  } catch {
    return ''
  }
}

function isDescendant(
  pid: number,
  parents: ReadonlyMap<number, number>,
  ancestor = process.pid,
): boolean {
  for (let at = parents.get(pid); at !== undefined && at > 1; at = parents.get(at)) {
    if (at === ancestor) return true
  }
  return false
}
