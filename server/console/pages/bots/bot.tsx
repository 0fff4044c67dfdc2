/** A bot: code, test bench, runs and live log. */

import { indentWithTab } from '@codemirror/commands'
import { StreamLanguage } from '@codemirror/language'
import { typescript } from '@codemirror/legacy-modes/mode/javascript'
import { lintGutter } from '@codemirror/lint'
import { keymap } from '@codemirror/view'
import { Button, Group, SegmentedControl, Stack, Table, Title } from '@mantine/core'
import type { Bot, Bundle, Parameters, Subscription } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { useMemo, useState } from 'react'
import { Link, useLocation, useParams, useSearch } from 'wouter'
import { useGet, useSend } from '../../client/api.ts'
import { useDraft } from '../../client/drafts.ts'
import { Problem, problemLines } from '../../client/problem.tsx'
import { isAdmin, medplum, useMe } from '../../client/session.ts'
import { Editor, type Mark } from '../../parts/editor.tsx'
import { Restored } from '../../parts/form.tsx'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Page, Views } from '../../parts/page.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { texts } from '../../texts/texts.ts'
import { Bench } from './bench.tsx'
import { Live } from './live.tsx'
import { milliseconds, nextPageQuery, parseRuns, type Run } from './runs.ts'
import { Outcome } from './status.tsx'

const TABS = ['code', 'bench', 'runs', 'live', 'details'] as const
type Tab = (typeof TABS)[number]
/** Runs and logs require an administrator. */
const FOR_ADMINS: readonly Tab[] = ['runs', 'live']

export function BotPage() {
  const { id, tab: asked } = useParams<{ id: string; tab?: string }>()
  const me = useMe()
  const bot = useGet<Bot>(`fhir/R4/Bot/${id}`)
  const shown = TABS.filter((name) => isAdmin(me) || !FOR_ADMINS.includes(name))
  const tab = shown.find((name) => name === asked) ?? 'code'
  return (
    <Loaded query={bot}>
      {(data) => (
        <Page title={data.name ?? id} hint={data.description}>
          <Views names={shown} labels={texts.bots.tabs} open={tab} address={`/bots/${id}`}>
            <View tab={tab} bot={data} />
          </Views>
        </Page>
      )}
    </Loaded>
  )
}

interface ViewProps {
  readonly tab: Tab
  readonly bot: Bot
}

function View({ tab, bot }: ViewProps) {
  const { id = '' } = bot
  if (tab === 'bench') return <Bench bot={bot} />
  if (tab === 'runs') return <Runs botId={id} />
  if (tab === 'live') return <Live botId={id} />
  if (tab === 'details') return <Details bot={bot} />
  return <Code bot={bot} />
}

const detailWords = texts.bots.details

interface Props {
  readonly bot: Bot
}

function Details({ bot }: Props) {
  const path = `fhir/R4/Subscription?url=Bot/${bot.id}`
  const subscriptions = useGet<Bundle<Subscription>>(path)
  return (
    <Stack>
      <Table variant="vertical" aria-label={detailWords.title}>
        <Table.Tbody>
          {botDetailRows(bot).map(([name, value]) => (
            <Table.Tr key={name}>
              <Table.Th w={220}>{name}</Table.Th>
              <Table.Td>{value}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
      <Link href={`/resources/Bot/${bot.id}`}>{detailWords.edit}</Link>
      <Title order={2} size="h4">
        {detailWords.subscriptions}
      </Title>
      <Loaded query={subscriptions}>
        {({ entry = [] }) => (
          <DataTable
            label={detailWords.subscriptions}
            rows={entry.flatMap(({ resource }) => (resource ? [resource] : []))}
            rowKey={({ id }) => id ?? ''}
            linkOf={({ id }) => `/resources/Subscription/${id}`}
            columns={[
              { name: detailWords.criteria, cell: ({ criteria }) => criteria },
              { name: detailWords.state, cell: ({ status }) => <Outcome status={status} /> },
            ]}
            empty={<span>{detailWords.none}</span>}
          />
        )}
      </Loaded>
    </Stack>
  )
}

/** Limits are extensions whose url ends with their name. */
function botDetailRows(bot: Bot): readonly (readonly [string, string])[] {
  const limits = (bot.extension ?? []).map(({ url, ...value }) => {
    const [first] = Object.values(value)
    return [url.replace(/^.*[/:]/, ''), String(first)] as const
  })
  const { cronString, cronTiming, runAsUser, timeout } = bot
  return [
    [
      detailWords.schedule,
      cronString ?? (cronTiming ? JSON.stringify(cronTiming) : detailWords.noSchedule),
    ],
    [detailWords.timeout, timeout === undefined ? detailWords.byDefault : `${timeout} s`],
    [detailWords.runAs, runAsUser ? detailWords.asCaller : detailWords.asBot],
    ...limits,
  ]
}

const runsWords = texts.bots.runs
const FILTERS = ['all', 'ok', 'failed'] as const
type Filter = (typeof FILTERS)[number]

interface RunsProps {
  readonly botId: string
}

function Runs({ botId }: RunsProps) {
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
            aria-label={runsWords.filter}
            value={filter}
            onChange={(value) => setFilter(value as Filter)}
            data={FILTERS.map((value) => ({ value, label: runsWords[value] }))}
          />
          <DataTable
            label={runsWords.title}
            rows={parseRuns(data).filter(({ status }) => isShown(filter, status))}
            columns={columns}
            rowKey={({ id, attempt }) => `${id}-${attempt}`}
            linkOf={({ id }) => `/bots/${botId}/runs/${id}`}
            empty={<Empty title={runsWords.none} hint={runsWords.noneHint} />}
          />
          <Group mt="sm">
            {nextPageQuery(data) && (
              <Button
                variant="default"
                onClick={() => navigate(`/bots/${botId}/runs${nextPageQuery(data)}`)}
              >
                {runsWords.older}
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
  { name: runsWords.started, cell: ({ started }) => <When at={started} /> },
  { name: runsWords.outcome, cell: ({ status }) => <Outcome status={status} /> },
  { name: runsWords.mode, cell: ({ mode }) => mode },
  { name: runsWords.time, align: 'right', cell: ({ durationMs }) => milliseconds(durationMs) },
  { name: runsWords.cpu, align: 'right', cell: ({ cpuMs }) => milliseconds(cpuMs) },
  { name: runsWords.version, align: 'right', cell: ({ version }) => version },
  { name: runsWords.error, cell: ({ error }) => error?.slice(0, 120) },
]

const codeWords = texts.bots.code
/** Tab indents; Escape then Tab leaves the editor. */
const code = [StreamLanguage.define(typescript), lintGutter(), keymap.of([indentWithTab])]

interface CodeProps {
  readonly bot: Bot
}

/** Edits and deploys a bot's source; errors appear at their line. */
function Code({ bot }: CodeProps) {
  const source = useQuery({
    queryKey: ['source', bot.id, bot.meta?.versionId],
    queryFn: () => downloadSource(bot),
  })
  return <Loaded query={source}>{(saved) => <Source bot={bot} saved={saved} />}</Loaded>
}

async function downloadSource({ sourceCode, executableCode }: Bot): Promise<string> {
  const url = sourceCode?.url ?? executableCode?.url
  return url === undefined ? codeWords.first : await (await medplum.download(url)).text()
}

interface SourceProps extends CodeProps {
  readonly saved: string
}

function Source({ bot, saved }: SourceProps) {
  const key = `bot-code/${bot.id}`
  const draft = useDraft(key, saved)
  // The service keeps the source of compiled code.
  const filename = (bot.sourceCode?.title ?? 'index.ts').replace(/\.[cm]?js$/, '.ts')
  const deployment = { code: draft.value, filename }
  const deploy = useSend({
    send: () => medplum.post(medplum.fhirUrl('Bot', bot.id ?? '', '$deploy'), deployment),
    done: codeWords.deployed,
    draft: key,
    after: draft.discard,
    notify: false,
  })
  const { error } = deploy
  const marks = useMemo(() => (error ? parseErrorMarks(error) : []), [error])
  return (
    <Stack>
      <Restored draft={draft} />
      <Editor
        label={codeWords.label}
        extensions={code}
        height="28rem"
        value={draft.value}
        onChange={draft.set}
        marks={marks}
      />
      <Problem error={error} title={codeWords.refused} />
      <Group>
        <Button onClick={() => deploy.mutate()} loading={deploy.isPending} id="deploy">
          {codeWords.deploy}
        </Button>
        {draft.isDirty && (
          <Button variant="default" onClick={draft.discard}>
            {texts.common.discard}
          </Button>
        )}
      </Group>
    </Stack>
  )
}

/** "… (line 2, column 13)" */
function parseErrorMarks(error: unknown): readonly Mark[] {
  return problemLines(error).flatMap(({ text }) => {
    const [, line, column] = /\(line (\d+), column (\d+)\)$/.exec(text) ?? []
    return line === undefined ? [] : [{ line: Number(line), column: Number(column), text }]
  })
}
