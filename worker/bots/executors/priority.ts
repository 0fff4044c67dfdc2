/**
 * How executors share the processor with everybody else (Linux). The bots of one that have used much step behind:
 * whoever serves others, and the bots of a project that asks for little, then need not wait for a crowd of runs.
 * It costs nothing while nobody else wants the processor. Nobody but root can step forward again, so it lasts as
 * long as the process does. Its first thread runs no bot, it hands runs over: it stays, since a place for which
 * it waited behind the bots that compute would be empty meanwhile.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { getPriority, setPriority } from 'node:os'

/** Below this process: a core is then shared 3 : 1. https://man7.org/linux/man-pages/man7/sched.7.html */
const BEHIND = 5
const LOWEST = 19
const MUCH_MS = 1000
/** The kernel reports in hundredths of a second, whatever its own clock. */
const TICK_MS = 10

/** `behind` are the threads that have stepped behind; those that came since the last look follow. */
export function stepBehindOnceBusy(pid: number, behind: Set<string>): void {
  try {
    if (behind.size === 0 && usedMs(pid) < MUCH_MS) return
    const priority = Math.min(getPriority() + BEHIND, LOWEST)
    for (const thread of readdirSync(`/proc/${pid}/task`)) {
      if (Number(thread) === pid || behind.has(thread)) continue
      setPriority(Number(thread), priority)
      behind.add(thread)
    }
  } catch {
    // The process, or a thread of it, ended meanwhile; or this is no Linux.
  }
}

/** User and system time; the fields after the command, which may hold spaces and brackets itself (proc(5)). */
function usedMs(pid: number): number {
  const text = readFileSync(`/proc/${pid}/stat`, 'latin1')
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * TICK_MS
}
