/** Gauges that are read at each scrape. */
import { Gauge, type Registry } from 'prom-client'

type AddGauge = (
  name: string,
  help: string,
  labelNames: readonly string[],
  collect: (own: Gauge<string>) => unknown,
) => void

/** Returns a function that registers a gauge, which is set before each scrape. */
export function gauges(registry: Registry): AddGauge {
  return (name, help, labelNames, collect) => {
    new Gauge({
      name,
      help,
      labelNames,
      registers: [registry],
      async collect() {
        await collect(this)
      },
    })
  }
}
