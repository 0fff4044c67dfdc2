/** Measured values of one kind over time. */
import { LineChart } from '@mantine/charts'
import { Card, Group, Select, Title } from '@mantine/core'
import type { Observation } from '@medplum/fhirtypes'
import { useState } from 'react'
import { recordTitle } from '../../client/titles.ts'
import { Hint } from '../../parts/text.tsx'
import { fill, texts } from '../../texts/texts.ts'

const words = texts.patient
const day = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium' })

interface Props {
  /** Newest first. */
  readonly observations: readonly Observation[]
}

export function Trend({ observations }: Props) {
  const kinds = groupByKind(observations)
  const [chosen, choose] = useState(kinds[0]?.key ?? '')
  const { label = '', unit = '', values = [] } = kinds.find(({ key }) => key === chosen) ?? {}
  // A value such as "< 5" has no place on a line.
  const limits = values.filter(({ valueQuantity }) => valueQuantity?.comparator)
  return (
    <Card withBorder padding="sm">
      <Group justify="space-between" mb="sm">
        <Title size="h5">{words.trend}</Title>
        <Select
          aria-label={words.trendOf}
          data={kinds.map(({ key, label }) => ({ value: key, label }))}
          value={chosen}
          allowDeselect={false}
          searchable
          onChange={(next) => next && choose(next)}
        />
      </Group>
      <LineChart
        h={220}
        data={values.flatMap(({ effectiveDateTime, issued, valueQuantity }) => {
          if (valueQuantity?.comparator) return []
          return { at: formatDay(effectiveDateTime ?? issued), value: valueQuantity?.value }
        })}
        dataKey="at"
        unit={unit === '' ? '' : ` ${unit}`}
        yAxisProps={{ domain: ['auto', 'auto'], width: 80 }}
        series={[{ name: 'value', label, color: 'blue.6' }]}
      />
      {limits.length > 0 && (
        <Hint>{fill(words.notDrawn, { values: limits.map(formatLimit).join('; ') })}</Hint>
      )}
    </Card>
  )
}

interface Kind {
  readonly key: string
  readonly label: string
  readonly unit: string
  /** Oldest first. */
  readonly values: readonly Observation[]
}

/** Groups by code and unit, the most frequent kind first: values of two units have no common axis. */
function groupByKind(observations: readonly Observation[]): readonly Kind[] {
  const groups = Map.groupBy(observations, (one) => JSON.stringify([codeText(one), unitCode(one)]))
  const kinds = [...groups].map(([key, values]) => {
    const [newest] = values
    const unit = newest?.valueQuantity?.unit ?? newest?.valueQuantity?.code ?? ''
    const title = newest ? recordTitle(newest) : ''
    return {
      key,
      label: unit === '' ? title : `${title} (${unit})`,
      code: newest ? codeText(newest) : '',
      unit,
      values: values.toReversed(),
    }
  })
  const isAmbiguous = (label: string) => kinds.filter((kind) => kind.label === label).length > 1
  return kinds
    .map((kind) =>
      isAmbiguous(kind.label) ? { ...kind, label: `${kind.label} ${kind.code}` } : kind,
    )
    .sort((a, b) => b.values.length - a.values.length)
}

function codeText({ code }: Observation): string {
  const { system = '', code: own } = code?.coding?.[0] ?? {}
  return own === undefined ? (code?.text ?? '') : `${system}|${own}`
}

function unitCode({ valueQuantity }: Observation): string {
  return valueQuantity?.unit ?? valueQuantity?.code ?? ''
}

function formatLimit({ effectiveDateTime, issued, valueQuantity }: Observation): string {
  const { comparator, value, unit = '' } = valueQuantity ?? {}
  return `${comparator}${value} ${unit} (${formatDay(effectiveDateTime ?? issued)})`
}

/** A day, month or year is shown as recorded: as a time it would be the day before in half of the world. */
function formatDay(time = ''): string {
  const date = new Date(time)
  return time.includes('T') && !Number.isNaN(date.getTime()) ? day.format(date) : time
}
