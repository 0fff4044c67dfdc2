/** The workers that are there, and what they count: slots, executors, memory. */
import { Stack, Title } from '@mantine/core'
import { useGet } from '../../api.ts'
import { Empty } from '../../parts/empty.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { DataTable } from '../../parts/table.tsx'
import { texts } from '../../texts/texts.ts'
import { State } from './health.tsx'

const words = texts.service
const CLOCK = [words.onTime, words.offTime] as const

/** The answer of `admin/super/workers`. */
interface Answer {
  readonly workers: readonly { readonly id: string; readonly isOnTime: boolean }[]
  /** By name, an item a worker. */
  readonly metrics: readonly Readonly<Record<string, readonly Value[]>>[]
}

interface Value {
  readonly value: number
  readonly [label: string]: string | number
}

interface Line {
  readonly place: number
  readonly name: string
  readonly labels: string
  readonly value: number
}

export function Workers() {
  const found = useGet<Answer>('admin/super/workers', { every: 5000 })
  return (
    <Loaded query={found}>
      {({ workers, metrics }) => (
        <Stack>
          <DataTable
            label={words.tabs.workers}
            rows={workers}
            keyOf={({ id }) => id}
            empty={<Empty title={words.noWorkers} hint={words.noWorkersHint} />}
            columns={[
              { name: words.worker, cell: ({ id }) => id },
              {
                name: words.clock,
                cell: ({ isOnTime }) => <State isWell={isOnTime} words={CLOCK} />,
              },
            ]}
          />
          <Title order={2} size="h4">
            {words.executors}
          </Title>
          <DataTable
            label={words.executors}
            rows={linesOf(metrics)}
            keyOf={({ place, name, labels }) => `${place} ${name} ${labels}`}
            empty={<Empty title={words.noExecutors} />}
            columns={[
              { name: words.metric, cell: ({ name, labels }) => `${name} ${labels}` },
              { name: words.value, align: 'right', cell: ({ value }) => value },
            ]}
          />
        </Stack>
      )}
    </Loaded>
  )
}

function linesOf(metrics: Answer['metrics']): readonly Line[] {
  return metrics.flatMap((worker, place) =>
    Object.entries(worker).flatMap(([name, values]) =>
      values.map(({ value, ...labels }) => ({
        place,
        name,
        labels: Object.values(labels).join(' '),
        value,
      })),
    ),
  )
}
