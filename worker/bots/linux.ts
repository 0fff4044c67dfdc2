/** Memory and priority of an executor on Linux. On other systems the isolate limits must suffice. */
import { readdirSync, readFileSync } from 'node:fs'
import { getPriority, setPriority } from 'node:os'
import { platform } from 'node:process'

export function readMemory(
  pid: number,
): { readonly rssMb: number; readonly ownMb: number } | undefined {
  if (platform !== 'linux') return undefined
  try {
    const status = readFileSync(`/proc/${pid}/status`, 'latin1')
    const match = /^VmRSS:\s+(\d+) kB\nRssAnon:\s+(\d+) kB/m.exec(status)
    return match ? { rssMb: Number(match[1]) / 1024, ownMb: Number(match[2]) / 1024 } : undefined
  } catch {
    return undefined
  }
}

// A CPU-heavy executor gets a lower priority, so that other processes need not wait for a crowd of runs. Only root can
// raise a priority again, so it lasts as long as the process. The main thread keeps its priority: it runs no long bot
// code and dispatches runs.

/** Nice value: a core is then shared 3 : 1. https://man7.org/linux/man-pages/man7/sched.7.html */
const NICER_BY = 5
const LOWEST = 19
const MUCH_MS = 1000
/** The kernel reports in hundredths of a second on every machine. */
const TICK_MS = 10

/** Lowers the priority of a busy process. `lowered` holds the threads already lowered; later ones follow. */
export function lowerPriorityOnceBusy(pid: number, lowered: Set<string>): void {
  if (platform !== 'linux') return
  try {
    if (lowered.size === 0 && usedMs(pid) < MUCH_MS) return
    const priority = Math.min(getPriority() + NICER_BY, LOWEST)
    for (const thread of readdirSync(`/proc/${pid}/task`)) {
      if (Number(thread) === pid || lowered.has(thread)) continue
      setPriority(Number(thread), priority)
      lowered.add(thread)
    }
  } catch {
    // The process or thread ended meanwhile.
  }
}

/** Returns user and system time, parsed after the command, which may contain spaces and brackets (proc(5)). */
function usedMs(pid: number): number {
  const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * TICK_MS
}
