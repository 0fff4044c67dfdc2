/** Memory of this process as Linux counts it. */
import { readFileSync } from 'node:fs'
import { attempt } from './errors.ts'

/**
 * Returns the proportional set size in bytes, in which a page that processes share counts once among them; undefined
 * on other systems. https://www.man7.org/linux/man-pages/man5/proc_pid_smaps.5.html
 */
export function readPssBytes(): number | undefined {
  const text = attempt(() => readFileSync('/proc/self/smaps_rollup', 'latin1'))
  return text === undefined ? undefined : Number(/^Pss:\s+(\d+) kB/m.exec(text)?.[1]) * 1024
}
