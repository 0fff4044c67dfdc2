/** Runs per minute in the last hour, from the latest runs of the busiest bots. */
import { AreaChart } from '@mantine/charts'
import { Stack, Title } from '@mantine/core'
import type { Parameters } from '@medplum/fhirtypes'
import { useQueries } from '@tanstack/react-query'
import { medplum } from '../../client/session.ts'
import { Hint } from '../../parts/text.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { type BotFigures, parseRuns, type Run } from '../bots/runs.ts'

const words = texts.home
const BUSIEST = 5
const MINUTES = 60
const MINUTE_MS = 60_000
const EVERY_MS = 10_000
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: 'short' })

export function LatestRuns({ bots }: { readonly bots: readonly BotFigures[] }) {
  const runs = useQueries({
    queries: bots.slice(0, BUSIEST).map(({ bot: { reference } }) => ({
      queryKey: ['latest', reference],
      queryFn: async () =>
        parseRuns(await medplum.get<Parameters>(`fhir/R4/${reference}/$runs?_count=100`)),
      refetchInterval: EVERY_MS,
    })),
    combine: (results) => results.flatMap(({ data = [] }) => data),
  })
  return (
    <Stack gap="xs">
      <Title>{words.chart}</Title>
      <Hint>{fill(words.chartHint, { bots: BUSIEST })}</Hint>
      <AreaChart
        h={220}
        data={countRunsByMinute(runs)}
        dataKey="minute"
        type="stacked"
        withLegend
        curveType="step"
        withDots={false}
        yAxisProps={{ allowDecimals: false }}
        series={[
          { name: 'ok', label: words.ok, color: 'green.6' },
          { name: 'failed', label: words.failed, color: 'red.6' },
        ]}
      />
    </Stack>
  )
}

function countRunsByMinute(runs: readonly Run[]) {
  const now = Math.floor(Date.now() / MINUTE_MS)
  return Array.from({ length: MINUTES }, (_, place) => {
    const minute = now - MINUTES + 1 + place
    const then = runs.filter(({ started }) => toMinute(started) === minute)
    const ok = then.filter(({ status }) => status === 'ok').length
    return { minute: clock.format(minute * MINUTE_MS), ok, failed: then.length - ok }
  })
}

function toMinute(time: string): number {
  return Math.floor(Date.parse(time) / MINUTE_MS)
}
