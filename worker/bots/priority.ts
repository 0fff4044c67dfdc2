/**
 * How executors share the processor with everybody else (Linux). One whose bots have used much steps behind:
 * whoever serves others, and the bots of a project that asks for little, then need not wait for a crowd of runs.
 * It costs nothing while nobody else wants the processor. Nobody but root can step forward again, so it lasts as
 * long as the process does.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { getPriority, setPriority } from 'node:os'

/** Below this process: a core is then shared 3 : 1. https://man7.org/linux/man-pages/man7/sched.7.html */
const BEHIND = 5
const LOWEST = 19
const MUCH_MS = 1000
/** The kernel reports in hundredths of a second, whatever its own clock. */
const TICK_MS = 10

/** True when the process has stepped behind, and need not be looked at again. */
export function stepBehindOnceBusy(pid: number): boolean {
  try {
    if (usedMs(pid) < MUCH_MS) return false
    // Each thread has its own priority and hands it on to those that it starts.
    const priority = Math.min(getPriority() + BEHIND, LOWEST)
    for (const thread of readdirSync(`/proc/${pid}/task`)) setPriority(Number(thread), priority)
    return true
  } catch {
    // The process, or a thread of it, ended meanwhile; or this is no Linux.
    return false
  }
}

/** User and system time; the fields after the command, which may hold spaces and brackets itself (proc(5)). */
function usedMs(pid: number): number {
  const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * TICK_MS
}
