/** The last messages of an agent, and the lines of its log. */
import { Button, Stack } from '@mantine/core'
import type { Parameters, ParametersParameter } from '@medplum/fhirtypes'
import { useGet, useSend } from '../../client/api.ts'
import { Problem } from '../../client/problem.tsx'
import { medplum } from '../../client/session.ts'
import { Empty } from '../../parts/loaded.tsx'
import { QueryTable } from '../../parts/query-table.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import { TextLink } from '../../parts/text.tsx'
import { When } from '../../parts/when.tsx'
import words from '../../texts/agents.json' with { type: 'json' }
import { formatStoredSize } from '../../texts/texts.ts'

const LINES = 100

interface Message {
  readonly key: string
  readonly at: string | undefined
  readonly direction: 'in' | 'out'
  readonly channel: string | undefined
  readonly remote: string | undefined
  readonly contentType: string | undefined
  readonly bytes: number
  readonly statusCode: number | undefined
  readonly durationMs: number | undefined
  readonly run: string | undefined
}

export function AgentMessages({ id }: { readonly id: string }) {
  const found = useGet<Parameters>(`fhir/R4/Agent/${id}/$messages`, { every: 5000 })
  return (
    <QueryTable
      query={found}
      label={words.tabs.messages}
      rows={({ parameter = [] }) => parameter.map(toMessage)}
      rowKey={({ key }) => key}
      columns={columns}
      empty={<Empty title={words.noMessages} hint={words.noMessagesHint} />}
    />
  )
}

function toMessage({ part = [] }: ParametersParameter, place: number): Message {
  const value = (name: string) => part.find((one) => one.name === name)
  const runId = value('runId')?.valueUuid?.replace('urn:uuid:', '')
  const bot = value('bot')?.valueReference?.reference?.split('/')[1]
  const at = value('at')?.valueInstant
  return {
    key: `${at} ${place}`,
    at,
    direction: value('direction')?.valueCode === 'out' ? 'out' : 'in',
    channel: value('channel')?.valueString,
    remote: value('remote')?.valueString,
    contentType: value('contentType')?.valueString,
    bytes: value('bytes')?.valueInteger ?? 0,
    statusCode: value('statusCode')?.valueInteger,
    durationMs: value('durationMs')?.valueInteger,
    run: bot && runId && `/bots/${bot}/runs/${runId}`,
  }
}

const columns: readonly Column<Message>[] = [
  { name: words.at, cell: ({ at }) => <When at={at} /> },
  { name: words.direction, cell: ({ direction }) => words[direction] },
  { name: words.channel, cell: ({ channel }) => channel },
  { name: words.remote, cell: ({ remote }) => remote },
  { name: words.type, cell: ({ contentType }) => contentType },
  {
    name: words.size,
    align: 'right',
    cell: ({ bytes }) => formatStoredSize({ versions: 1, bytes, isEstimate: false }),
  },
  { name: words.answer, align: 'right', cell: ({ statusCode }) => statusCode },
  { name: words.time, align: 'right', cell: ({ durationMs }) => `${durationMs} ms` },
  {
    name: words.run,
    cell: ({ run }) => run && <TextLink href={run}>{words.toRun}</TextLink>,
  },
]

interface Line {
  readonly level?: string
  readonly msg?: string
  readonly timestamp?: string
}

/** The agent is asked only on request: its log is on another machine. */
export function AgentLog({ id }: { readonly id: string }) {
  const fetched = useSend<void, Parameters>({
    send: () =>
      medplum.get(`fhir/R4/Agent/${id}/$fetch-logs?limit=${LINES}`, { cache: 'no-store' }),
    notify: false,
  })
  return (
    <Stack align="flex-start">
      <Button loading={fetched.isPending} onClick={() => fetched.mutate()}>
        {words.fetch}
      </Button>
      <Problem error={fetched.error} />
      {fetched.data && (
        <DataTable
          label={words.tabs.log}
          rows={readLines(fetched.data)}
          rowKey={({ place }) => String(place)}
          empty={<Empty title={words.noLines} />}
          columns={[
            { name: words.at, cell: ({ timestamp }) => <When at={timestamp} /> },
            { name: words.level, cell: ({ level }) => level },
            { name: words.text, cell: ({ msg }) => msg },
          ]}
        />
      )}
    </Stack>
  )
}

function readLines({ parameter = [] }: Parameters): readonly (Line & { readonly place: number })[] {
  const text = parameter.find(({ name }) => name === 'logs')?.valueString ?? '[]'
  return (JSON.parse(text) as Line[]).map((line, place) => ({
    place,
    level: String(line.level ?? ''),
    msg: String(line.msg ?? ''),
    timestamp: String(line.timestamp ?? ''),
  }))
}
