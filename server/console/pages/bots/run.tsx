/** One run: its outcome, its times, its log, and the same input once more. */
import { Button, Code, Stack, Table, Title } from '@mantine/core'
import type { Bot, Parameters } from '@medplum/fhirtypes'
import { Link, useLocation, useParams } from 'wouter'
import { useGet, useSend } from '../../api.ts'
import { Empty } from '../../parts/empty.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { Problem } from '../../parts/problem.tsx'
import { When } from '../../parts/when.tsx'
import { medplum } from '../../session.ts'
import { fill, texts } from '../../texts/texts.ts'
import { Live } from './live.tsx'
import { milliseconds, type Run, runsOf } from './runs.ts'
import { Outcome } from './status.tsx'

const words = texts.bots.run

export function RunPage() {
  const { id, run } = useParams<{ id: string; run: string }>()
  const bot = useGet<Bot>(`fhir/R4/Bot/${id}`)
  const path = `fhir/R4/Bot/${id}/$runs?_count=100`
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
          const attempts = runsOf(data).filter((item) => item.id === run)
          const [last] = attempts
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

/** The new run is on its own page; a failure of it is no failure of asking for it. */
function Replay({ botId, runId }: ReplayProps) {
  const [, navigate] = useLocation()
  const replay = useSend({
    send: async () => {
      const response = await fetch(medplum.fhirUrl('Bot', botId, '$replay'), {
        method: 'POST',
        headers: {
          Authorization: `Bearer ${medplum.getAccessToken()}`,
          'Content-Type': 'application/json',
        },
        body: JSON.stringify({ runId }),
      })
      const fresh = response.headers.get('X-Bot-Run-Id')
      if (fresh !== null) return fresh
      throw new Error(response.status === 404 ? words.notKept : await response.text())
    },
    after: (fresh) => navigate(`/bots/${botId}/runs/${fresh}`),
  })
  return (
    <Button onClick={() => replay.mutate()} loading={replay.isPending} id="replay">
      {words.replay}
    </Button>
  )
}

interface EndedProps {
  readonly run: Run
}

function Ended({ run }: EndedProps) {
  const { memoryMb, waitedFor, waitedMs } = run
  const rows: readonly (readonly [string, React.ReactNode])[] = [
    [words.outcome, <Outcome key="outcome" status={run.status} />],
    [words.started, <When key="started" at={run.started} />],
    [words.time, milliseconds(run.durationMs)],
    [words.cpu, milliseconds(run.cpuMs)],
    [words.memory, memoryMb === undefined ? '–' : `${memoryMb} MB`],
    [words.waited, waitedFor ? `${milliseconds(waitedMs ?? 0)} (${waitedFor})` : '–'],
    [words.attempt, run.attempt],
    [words.version, run.version],
    [words.mode, run.mode],
    [words.requester, run.requester],
    [words.runAs, run.runAs],
    [words.input, run.isReplayable ? words.kept : words.notKeptShort],
  ]
  return (
    <Stack>
      {run.error && <Problem error={run.error} title={words.failed} />}
      <Title order={2} size="h4">
        {words.log}
      </Title>
      <Code block id="log">
        {run.log === '' ? words.noLog : run.log}
      </Code>
      <Table variant="vertical" layout="fixed" aria-label={words.figures}>
        <Table.Tbody>
          {rows.map(([name, value]) => (
            <Table.Tr key={name}>
              <Table.Th w={160}>{name}</Table.Th>
              <Table.Td>{value}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Stack>
  )
}
