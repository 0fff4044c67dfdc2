/** A run: outcome, times, log and replay. */
import { Code, Stack, Text, Title } from '@mantine/core'
import type { Attachment, Bot, Parameters } from '@medplum/fhirtypes'
import { Link, useLocation, useParams } from 'wouter'
import { fetchSigned, readError, useGet } from '../../client/api.ts'
import { Problem } from '../../client/problem.tsx'
import { Action } from '../../parts/action.tsx'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { RunOutcome } from '../../parts/outcome.tsx'
import { Page } from '../../parts/page.tsx'
import { DataTable, Facts } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { Live, withLocalTimes } from './live.tsx'
import { milliseconds, parseRuns, type Run } from './runs.ts'

const words = texts.bots.run
const { modes } = texts.bots.runs

export function RunPage() {
  const { id, run } = useParams<{ id: string; run: string }>()
  const bot = useGet<Bot>(`fhir/R4/Bot/${id}`)
  const path = `fhir/R4/Bot/${id}/$runs?runId=${run}`
  const runs = useGet<Parameters>(path, { every: 2000 })
  const name = bot.data?.name ?? ''
  return (
    <Page
      title={fill(words.title, { bot: name })}
      hint={run}
      actions={<Replay botId={id} runId={run} />}
    >
      <Loaded query={runs}>
        {(data) => {
          const [last] = parseRuns(data)
          if (last) return <Ended key={last.attempt} run={last} />
          return (
            <Stack>
              <Empty title={words.notEnded} hint={words.notEndedHint} />
              <Live botId={id} runId={run} />
            </Stack>
          )
        }}
      </Loaded>
      <Link href={`/bots/${id}/runs`}>{words.back}</Link>
    </Page>
  )
}

interface ReplayProps {
  readonly botId: string
  readonly runId: string
}

/** Opens the new run on its page; its failure is not an error of the request. */
function Replay({ botId, runId }: ReplayProps) {
  const [, navigate] = useLocation()
  const replay = async () => {
    const response = await fetchSigned(`fhir/R4/Bot/${botId}/$replay`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ runId }),
    })
    const fresh = response.headers.get('X-Bot-Run-Id')
    if (fresh !== null) return fresh
    throw response.status === 404 ? new Error(words.notKept) : await readError(response)
  }
  const show = (fresh: string) => navigate(`/bots/${botId}/runs/${fresh}`)
  return (
    <Action id="replay" variant="filled" send={replay} after={show}>
      {words.replay}
    </Action>
  )
}

type Row = readonly [string, React.ReactNode]

function optional(name: string, value: string | number | undefined): readonly Row[] {
  return value === undefined ? [] : [[name, value]]
}

interface EndedProps {
  readonly run: Run
}

function Ended({ run }: EndedProps) {
  const { memoryMb, waitedFor, waitedMs, streamedStatus: status, streamedBytes: bytes } = run
  const isStreamed = status !== undefined && bytes !== undefined
  const rows: readonly Row[] = [
    [words.outcome, <RunOutcome key="outcome" status={run.status} />],
    [words.started, <When key="started" at={run.started} />],
    [words.time, milliseconds(run.durationMs)],
    [words.cpu, milliseconds(run.cpuMs)],
    [words.memory, memoryMb === undefined ? '–' : `${memoryMb} MB`],
    [words.waited, waitedFor ? `${milliseconds(waitedMs ?? 0)} (${waitedFor})` : '–'],
    ...optional(words.key, run.key),
    ...optional(words.replaced, run.replaced),
    ...optional(
      words.streamed,
      isStreamed ? fill(words.streamedBytes, { status, bytes }) : undefined,
    ),
    [words.attempt, run.attempt],
    [words.botVersion, run.version],
    [words.mode, modes[run.mode as keyof typeof modes] ?? run.mode],
    [words.requester, run.requester],
    [words.runAs, run.runAs],
  ]
  return (
    <Stack>
      {run.error && <Problem error={run.error} title={words.failed} />}
      <Title>{words.log}</Title>
      <Code block id="log">
        {run.log === '' ? words.noLog : withLocalTimes(run.log)}
      </Code>
      <Title>{words.input}</Title>
      {run.input ? <Input {...run.input} /> : <Text c="dimmed">{words.notKeptShort}</Text>}
      <Title>{words.calls}</Title>
      <Calls run={run} />
      <Title>{words.figures}</Title>
      <Facts label={words.figures} rows={rows} />
    </Stack>
  )
}

function Input({ contentType = '', data = '', size = 0 }: Attachment) {
  const bytes = Uint8Array.from(atob(data), (byte) => byte.charCodeAt(0))
  const text = new TextDecoder().decode(bytes).replace(/\r\n?/g, '\n')
  const isText = !text.includes('\uFFFD') && !text.includes('\0')
  return (
    <div>
      <Text size="sm" c="dimmed" mb={4}>
        {fill(words.given, { type: contentType, size })}
        {bytes.length < size && ` ${words.cut}`}
      </Text>
      {isText && (
        <Code block id="input" mah="24rem" tabIndex={0}>
          {text}
        </Code>
      )}
    </div>
  )
}

function Calls({ run: { calls, callCount } }: EndedProps) {
  return (
    <>
      <DataTable
        label={words.calls}
        rows={calls}
        rowKey={({ place }) => String(place)}
        empty={<Text c="dimmed">{words.noCalls}</Text>}
        columns={[
          { name: words.call, cell: ({ method, path }) => <Code>{`${method} ${path}`}</Code> },
          { name: words.answer, cell: ({ status }) => status ?? words.noAnswer },
          {
            name: words.time,
            align: 'right',
            cell: ({ ms }) => (ms === undefined ? '–' : milliseconds(ms)),
          },
          { name: words.wrote, cell: ({ wrote }) => wrote.map(writtenLink) },
        ]}
      />
      {callCount > calls.length && (
        <Text size="sm">{fill(words.moreCalls, { count: callCount - calls.length })}</Text>
      )}
    </>
  )
}

function writtenLink(version: string) {
  const [type, id, , number] = version.split('/')
  const isGone = number === undefined
  return (
    <div key={version}>
      <Link href={`/resources/${type}/${id}${isGone ? '/history' : ''}`}>
        {isGone ? `${type}/${id}` : fill(words.version, { record: `${type}/${id}`, number })}
      </Link>
    </div>
  )
}
