/** Measured values of one kind over time. */
import { LineChart } from '@mantine/charts'
import { Card, Group, Select, Title } from '@mantine/core'
import type { Observation } from '@medplum/fhirtypes'
import { useState } from 'react'
import { recordTitle } from '../../client/titles.ts'
import { texts } from '../../texts/texts.ts'

const words = texts.patient
const day = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium' })

interface Props {
  readonly observations: readonly Observation[]
}

export function Trend({ observations }: Props) {
  const kinds = Map.groupBy(observations, recordTitle)
  const names = [...kinds].sort(([, a], [, b]) => b.length - a.length).map(([name]) => name)
  const [chosen, choose] = useState(names[0] ?? '')
  const values = (kinds.get(chosen) ?? []).toReversed()
  const unit = values.at(-1)?.valueQuantity?.unit ?? ''
  return (
    <Card withBorder padding="sm">
      <Group justify="space-between" mb="sm">
        <Title size="h5">{words.trend}</Title>
        <Select
          aria-label={words.trendOf}
          data={names}
          value={chosen}
          allowDeselect={false}
          searchable
          onChange={(next) => next && choose(next)}
        />
      </Group>
      <LineChart
        h={220}
        data={values.map(({ effectiveDateTime, issued, valueQuantity }) => ({
          at: formatDay(effectiveDateTime ?? issued),
          value: valueQuantity?.value,
        }))}
        dataKey="at"
        unit={unit === '' ? '' : ` ${unit}`}
        yAxisProps={{ domain: ['auto', 'auto'], width: 80 }}
        series={[{ name: 'value', label: chosen, color: 'blue.6' }]}
      />
    </Card>
  )
}

/** A day, month or year is shown as recorded: as a time it would be the day before in half of the world. */
function formatDay(time = ''): string {
  const date = new Date(time)
  return time.includes('T') && !Number.isNaN(date.getTime()) ? day.format(date) : time
}
