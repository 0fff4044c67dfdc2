/**
 * Records of running processes, so that the next run ends those left by a killed one. Start times distinguish processes
 * with one pid.
 */
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'

interface Note {
  readonly pid: number
  readonly started: string
}

const SURVIVOR_MS = 10_000

export function writeProcessNote(file: string, pid: number): void {
  const note: Note = { pid, started: readStartTime(pid) ?? '' }
  writeFileSync(file, JSON.stringify(note), { mode: 0o600 })
}

export function findNotedProcess(file: string): number | undefined {
  const note = readNote(file)
  if (note === undefined || note.started !== readStartTime(note.pid)) return undefined
  return note.pid
}

/** Ends a leftover process; kills it after 10 s. */
export async function terminateLeftover(file: string, signal: NodeJS.Signals): Promise<void> {
  const pid = findNotedProcess(file)
  if (pid === undefined) return
  process.kill(pid, signal)
  const deadline = Date.now() + SURVIVOR_MS
  while (findNotedProcess(file) === pid) {
    if (Date.now() > deadline) process.kill(pid, 'SIGKILL')
    await delay(50)
  }
  rmSync(file, { force: true })
}

function readNote(file: string): Note | undefined {
  try {
    return JSON.parse(readFileSync(file, 'utf8'))
  } catch {
    return undefined
  }
}

/** Returns boot id and start ticks: field 22 of /proc/<pid>/stat, counted after the name's bracket. */
function readStartTime(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    if (fields[0] === 'Z') return undefined
    return `${readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()} ${fields[19]}`
  } catch {
    return undefined
  }
}
