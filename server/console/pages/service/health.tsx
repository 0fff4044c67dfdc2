/** Health of the required services, running versions and migrations. */
import { Stack, Text, Title } from '@mantine/core'
import { useGet } from '../../client/api.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { Dot } from '../../parts/outcome.tsx'
import { QueryTable } from '../../parts/query-table.tsx'
import { DataTable } from '../../parts/table.tsx'
import words from '../../texts/service.json' with { type: 'json' }
import { fill } from '../../texts/texts.ts'

const PARTS = ['postgres', 'redis', 'storage', 'workers', 'clocks'] as const
const HEALTH = [words.well, words.unwell] as const
type Part = (typeof PARTS)[number]

type Answer = Readonly<Record<Part, boolean>> & {
  readonly version?: string
  readonly runtime?: string
  readonly latencyMs: Readonly<Record<Part, number>>
}

export function Health() {
  const health = useGet<Answer>('healthcheck', { every: 10_000 })
  const ran = useGet<{ readonly migrations: readonly string[] }>('admin/super/migrations')
  return (
    <Stack>
      <Loaded query={health}>
        {(answer) => (
          <>
            <Text>
              {fill(words.version, {
                version: answer.version ?? '',
                runtime: answer.runtime ?? '',
              })}
            </Text>
            <DataTable
              label={words.tabs.health}
              rows={PARTS}
              rowKey={(name) => name}
              columns={[
                { name: words.part, cell: (name) => name },
                {
                  name: words.state,
                  cell: (name) => <State isWell={answer[name]} words={HEALTH} />,
                },
                { name: words.latency, align: 'right', cell: (name) => answer.latencyMs[name] },
              ]}
            />
          </>
        )}
      </Loaded>
      <Title>{words.migrations}</Title>
      <QueryTable
        query={ran}
        label={words.migrations}
        rows={({ migrations }) => migrations}
        rowKey={(name) => name}
        columns={[{ name: words.migration, cell: (name) => name }]}
      />
    </Stack>
  )
}

interface StateProps {
  readonly isWell: boolean
  readonly words: readonly [well: string, unwell: string]
}

export function State({ isWell, words: [well, unwell] }: StateProps) {
  return <Dot color={isWell ? 'green' : 'red'}>{isWell ? well : unwell}</Dot>
}
