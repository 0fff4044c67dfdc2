/** Metrics of exports; /metrics of web shows them for all workers together. */
import { Counter, type Registry } from 'prom-client'

export interface ExportMetrics {
  /** A block is stored and written down. */
  wrote(rows: number, bytes: number, packed: number): void
  /** A part is taken that another worker has had, or that has failed. */
  retried(): void
}

export function createExportMetrics(registry: Registry): ExportMetrics {
  const registers = [registry]
  const rows = new Counter({ name: 'export_rows_total', help: 'Exported lines', registers })
  const bytes = new Counter({
    name: 'export_bytes_total',
    help: 'Bytes of exported lines, plain and as they are stored',
    labelNames: ['form'],
    registers,
  })
  const retries = new Counter({
    name: 'export_parts_retried_total',
    help: 'Parts of exports that were taken again',
    registers,
  })
  return {
    wrote(count, plain, packed) {
      rows.inc(count)
      bytes.inc({ form: 'plain' }, plain)
      bytes.inc({ form: 'packed' }, packed)
    },
    retried: () => retries.inc(),
  }
}
