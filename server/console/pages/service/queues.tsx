/** The jobs of all queues, and the projects that they belong to. */
import { Stack, Text, Title } from '@mantine/core'
import { useGet } from '../../api.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import { texts } from '../../texts/texts.ts'

const words = texts.service

/** The answer of `admin/super/queues`. */
interface Answer {
  readonly queues: Readonly<Record<string, Depths>>
  readonly projects: readonly Row[]
  readonly lanes: readonly Row[]
  readonly upkeep: readonly Row[]
}

interface Depths {
  readonly waiting: number
  readonly prioritized: number
  readonly active: number
  readonly delayed: number
  readonly failed: number
  readonly oldestMs: number | null
}

/** Columns by name, as the service has them. */
type Row = Readonly<Record<string, unknown>>

export function Queues() {
  const found = useGet<Answer>('admin/super/queues', { every: 5000 })
  return (
    <Loaded query={found}>
      {({ queues, lanes, projects, upkeep }) => (
        <Stack>
          <DataTable
            label={words.tabs.queues}
            rows={Object.entries(queues)}
            keyOf={([name]) => name}
            columns={columns}
          />
          <Rows title={words.lanes} rows={lanes} none={words.noLanes} />
          <Rows title={words.work} rows={projects} none={words.noWork} />
          <Rows title={words.upkeep} rows={upkeep} none={words.noUpkeep} />
        </Stack>
      )}
    </Loaded>
  )
}

const columns: readonly Column<readonly [string, Depths]>[] = [
  { name: words.queue, cell: ([name]) => name },
  { name: words.waiting, align: 'right', cell: ([, one]) => one.waiting + one.prioritized },
  { name: words.active, align: 'right', cell: ([, one]) => one.active },
  { name: words.delayed, align: 'right', cell: ([, one]) => one.delayed },
  { name: words.failed, align: 'right', cell: ([, one]) => one.failed },
  { name: words.oldest, align: 'right', cell: ([, { oldestMs }]) => secondsOf(oldestMs) },
]

function secondsOf(ms: number | null): string {
  return ms === null ? '–' : `${Math.round(ms / 100) / 10} s`
}

interface RowsProps {
  readonly title: string
  readonly rows: readonly Row[]
  readonly none: string
}

function Rows({ title, rows, none }: RowsProps) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))]
  return (
    <div>
      <Title order={2} size="h4">
        {title}
      </Title>
      <DataTable
        label={title}
        rows={rows}
        keyOf={(row) => JSON.stringify(row)}
        columns={names.map((name) => ({ name, cell: (row: Row) => shown(row[name]) }))}
        empty={
          <Text size="sm" c="dimmed">
            {none}
          </Text>
        }
      />
    </div>
  )
}

function shown(value: unknown): string {
  return typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value ?? '–')
}
