/** Gauges that are read at each scrape, of web and worker. */
import { readFileSync } from 'node:fs'
import { Gauge, type Registry } from 'prom-client'
import { attempt } from './errors.ts'

export type Labels = Readonly<Record<string, string>>
/** Values of equal labels are added. */
type Values = readonly (readonly [Labels, number])[]

/** Returns a function that registers a gauge. Its values are those that `read` returns. */
export function gauges(registry: Registry) {
  return (
    name: string,
    help: string,
    labelNames: readonly string[],
    read: () => number | Values | Promise<number | Values>,
  ): void => {
    new Gauge({
      name,
      help,
      labelNames,
      registers: [registry],
      async collect() {
        const found = await read()
        this.reset()
        for (const [labels, value] of typeof found === 'number' ? [[{}, found] as const] : found) {
          this.inc({ ...labels }, value)
        }
      },
    })
  }
}

/**
 * Returns the proportional set size in bytes, in which a page that processes share counts once among them; undefined
 * on other systems, or when the process has ended. https://www.man7.org/linux/man-pages/man5/proc_pid_smaps.5.html
 */
export function readPssBytes(pid: number | 'self' = 'self'): number | undefined {
  const text = attempt(() => readFileSync(`/proc/${pid}/smaps_rollup`, 'latin1'))
  return text === undefined ? undefined : Number(/^Pss:\s+(\d+) kB/m.exec(text)?.[1]) * 1024
}
