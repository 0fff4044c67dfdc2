/** The latest runs of a bot, newest first. */
import { Button, Group, SegmentedControl } from '@mantine/core'
import type { Parameters } from '@medplum/fhirtypes'
import { useState } from 'react'
import { useLocation, useSearch } from 'wouter'
import { useGet } from '../../api.ts'
import { Empty } from '../../parts/empty.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { texts } from '../../texts/texts.ts'
import { milliseconds, nextOf, type Run, runsOf } from './runs.ts'
import { Outcome } from './status.tsx'

const words = texts.bots.runs
const FILTERS = ['all', 'ok', 'failed'] as const
type Filter = (typeof FILTERS)[number]

interface Props {
  readonly botId: string
}

export function Runs({ botId }: Props) {
  const search = useSearch()
  const [, navigate] = useLocation()
  const [filter, setFilter] = useState<Filter>('all')
  const path = `fhir/R4/Bot/${botId}/$runs?${search === '' ? '_count=50' : search}`
  const runs = useGet<Parameters>(path, { every: search === '' ? 3000 : false })
  return (
    <Loaded query={runs}>
      {(data) => (
        <>
          <SegmentedControl
            mb="sm"
            aria-label={words.filter}
            value={filter}
            onChange={(value) => setFilter(value as Filter)}
            data={FILTERS.map((value) => ({ value, label: words[value] }))}
          />
          <DataTable
            label={words.title}
            rows={runsOf(data).filter(({ status }) => isShown(filter, status))}
            columns={columns}
            keyOf={({ id, attempt }) => `${id}-${attempt}`}
            linkOf={({ id }) => `/bots/${botId}/runs/${id}`}
            empty={<Empty title={words.none} hint={words.noneHint} />}
          />
          <Group mt="sm">
            {nextOf(data) && (
              <Button
                variant="default"
                onClick={() => navigate(`/bots/${botId}/runs${nextOf(data)}`)}
              >
                {words.older}
              </Button>
            )}
          </Group>
        </>
      )}
    </Loaded>
  )
}

function isShown(filter: Filter, status: string): boolean {
  return filter === 'all' || (status === 'ok') === (filter === 'ok')
}

const columns: readonly Column<Run>[] = [
  { name: words.started, cell: ({ started }) => <When at={started} /> },
  { name: words.outcome, cell: ({ status }) => <Outcome status={status} /> },
  { name: words.mode, cell: ({ mode }) => mode },
  { name: words.time, align: 'right', cell: ({ durationMs }) => milliseconds(durationMs) },
  { name: words.cpu, align: 'right', cell: ({ cpuMs }) => milliseconds(cpuMs) },
  { name: words.version, align: 'right', cell: ({ version }) => version },
  { name: words.error, cell: ({ error }) => error?.slice(0, 120) },
]
