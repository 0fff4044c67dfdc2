/** Gauges that are read at each scrape, of web and worker. */
import { Gauge, type Registry } from 'prom-client'

export type Labels = Readonly<Record<string, string>>
/** Values of equal labels are added. */
export type Values = readonly (readonly [Labels, number])[]

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
