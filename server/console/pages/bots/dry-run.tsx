/** Past runs repeated with another version of the code: how many answers differ, and which. */
import { Anchor, Code, Stack, Text, Title } from '@mantine/core'
import type { AsyncJob, ParametersParameter } from '@medplum/fhirtypes'
import { Link } from 'wouter'
import { useGet } from '../../client/api.ts'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import words from '../../texts/releases.json' with { type: 'json' }
import { fill } from '../../texts/texts.ts'

interface Compared {
  readonly id: string
  readonly before: string
  readonly after: string
  readonly notes: readonly string[]
}

interface Props {
  readonly botId: string
  readonly version: string
  readonly job: string
}

const COUNTS = ['runs', 'done', 'same', 'different', 'notCompared']

export function DryRun({ botId, version, job }: Props) {
  const found = useGet<AsyncJob>(`fhir/R4/AsyncJob/${job}`, { every: 2000 })
  return (
    <Loaded query={found}>
      {({ output }) => <Report botId={botId} version={version} parts={output?.parameter ?? []} />}
    </Loaded>
  )
}

interface ReportProps {
  readonly botId: string
  readonly version: string
  readonly parts: readonly ParametersParameter[]
}

function Report({ botId, version, parts }: ReportProps) {
  const counts = COUNTS.map((name) => [
    name,
    parts.find((part) => part.name === name)?.valueInteger ?? 0,
  ])
  const columns: readonly Column<Compared>[] = [
    {
      name: words.run,
      cell: ({ id }) => (
        <Anchor component={Link} href={`/bots/${botId}/runs/${id}`}>
          {id.slice(0, 8)}
        </Anchor>
      ),
    },
    { name: words.before, cell: ({ before }) => <Code block>{before}</Code> },
    { name: words.after, cell: ({ after }) => <Code block>{after}</Code> },
    { name: words.notes, cell: ({ notes }) => notes.map((text) => <Text key={text}>{text}</Text>) },
  ]
  return (
    <Stack gap="xs">
      <Title>{fill(words.dryRunOf, { version })}</Title>
      <Text>{words.dryRunHint}</Text>
      <Text>{fill(words.dryRunCounts, Object.fromEntries(counts))}</Text>
      <DataTable
        label={words.dryRun}
        rows={parts.filter(({ name }) => name === 'run').map(toCompared)}
        rowKey={({ id }) => id}
        columns={columns}
        empty={<Empty title={words.allSame} hint={words.dryRunHint} />}
      />
    </Stack>
  )
}

function toCompared({ part = [] }: ParametersParameter): Compared {
  const at = (name: string) => part.find((one) => one.name === name)
  const shown = (when: 'Before' | 'After') =>
    [
      at(`status${when}`)?.valueCode,
      at(`answer${when}`)?.valueString,
      at(`writes${when}`)?.valueString,
    ]
      .filter((text) => text !== undefined)
      .join('\n')
  const notes = part.flatMap(({ name, valueString }) =>
    valueString !== undefined && (name === 'note' || name === 'reason') ? [valueString] : [],
  )
  const id = at('runId')?.valueUuid?.replace('urn:uuid:', '') ?? ''
  return { id, before: shown('Before'), after: shown('After'), notes }
}
