/** Metrics as charts, since the page was opened. */
import { LineChart } from '@mantine/charts'
import { Paper, SimpleGrid, Stack, Title } from '@mantine/core'
import { useEffect, useState } from 'react'
import { useGet } from '../../client/api.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { Hint } from '../../parts/text.tsx'
import words from '../../texts/service.json' with { type: 'json' }

const EVERY_MS = 5000
const POINTS = 120
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: 'medium' })

interface Answer {
  readonly metrics: readonly Metric[]
}

interface Metric {
  readonly name: string
  readonly values: readonly {
    readonly labels: Readonly<Record<string, string>>
    readonly value: number
  }[]
}

type Name = keyof typeof words.charts
type Sums = Readonly<Record<Name, number>>

interface Sample {
  readonly at: number
  readonly sums: Sums
}

const RATES: readonly Name[] = ['requests', 'statements']
const NAMES: readonly Name[] = ['requests', 'statements', 'lag', 'memory', 'waiting', 'events']

export function Metrics() {
  const found = useGet<Answer>('admin/super/metrics', { every: EVERY_MS })
  const [samples, setSamples] = useState<readonly Sample[]>([])
  const { data, dataUpdatedAt: at } = found
  useEffect(() => {
    if (data === undefined) return
    setSamples((all) => [...all, { at, sums: sumMetrics(data.metrics) }].slice(-POINTS))
  }, [data, at])
  return (
    <Loaded query={found}>
      {() => (
        <Stack>
          <Hint>{words.chartHint}</Hint>
          <SimpleGrid cols={{ base: 1, md: 2 }}>
            {NAMES.map((name) => (
              <Chart key={name} name={name} samples={samples} />
            ))}
          </SimpleGrid>
        </Stack>
      )}
    </Loaded>
  )
}

interface ChartProps {
  readonly name: Name
  readonly samples: readonly Sample[]
}

function Chart({ name, samples }: ChartProps) {
  const points = toChartPoints(name, samples)
  return (
    <Paper withBorder p="md">
      <Title size="h5">
        {words.charts[name]}: {points.at(-1)?.value ?? '–'}
      </Title>
      <LineChart
        h={160}
        data={points}
        dataKey="time"
        withDots={false}
        curveType="linear"
        series={[{ name: 'value', label: words.charts[name], color: 'blue.6' }]}
      />
    </Paper>
  )
}

function toChartPoints(name: Name, samples: readonly Sample[]) {
  return samples.flatMap(({ at, sums }, place) => {
    const before = samples[place - 1]
    const time = clock.format(at)
    if (!RATES.includes(name)) return [{ time, value: rounded(sums[name]) }]
    if (before === undefined || at === before.at) return []
    // A restarted process counts from 0.
    const grown = Math.max(0, sums[name] - before.sums[name])
    return [{ time, value: rounded((1000 * grown) / (at - before.at)) }]
  })
}

function rounded(value: number): number {
  return Math.round(value * 10) / 10
}

function sumMetrics(metrics: readonly Metric[]): Sums {
  const sum = (name: string, state?: string) =>
    metrics
      .flatMap((metric) => (metric.name === name ? metric.values : []))
      .filter(({ labels }) => state === undefined || labels.state === state)
      .reduce((total, { value }) => total + value, 0)
  return {
    requests: sum('http_requests_total'),
    statements: sum('database_statements_total'),
    lag: 1000 * sum('nodejs_eventloop_lag_p99_seconds'),
    memory: sum('process_resident_memory_bytes') / 1_048_576,
    waiting: sum('queue_jobs', 'waiting') + sum('queue_jobs', 'prioritized'),
    events: sum('event_deliveries_waiting'),
  }
}
