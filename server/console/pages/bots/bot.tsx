/** A bot: its workbench, runs, releases and details. */

import { SimpleGrid, Stack, Title } from '@mantine/core'
import type { Bot, Subscription } from '@medplum/fhirtypes'
import { Link, useParams } from 'wouter'
import { useGet } from '../../client/api.ts'
import { isAdmin, useMe } from '../../client/session.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { Outcome } from '../../parts/outcome.tsx'
import { Page, Views } from '../../parts/page.tsx'
import { RecordTable } from '../../parts/query-table.tsx'
import { Facts } from '../../parts/table.tsx'
import { texts } from '../../texts/texts.ts'
import { ScheduleEditor } from '../schedules/editor.tsx'
import { Bench } from './bench.tsx'
import { Code } from './code.tsx'
import { Live } from './live.tsx'
import { Releases } from './releases.tsx'
import { RunList } from './run-list.tsx'

const detailWords = texts.bots.details
const TABS = ['code', 'runs', 'releases', 'details'] as const
type Tab = (typeof TABS)[number]

export function BotPage() {
  const { id, tab: asked } = useParams<{ id: string; tab?: string }>()
  const me = useMe()
  const bot = useGet<Bot>(`fhir/R4/Bot/${id}`)
  const shown = TABS.filter((name) => isAdmin(me) || name !== 'runs')
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
  if (tab === 'runs') return <RunList botId={bot.id ?? ''} />
  if (tab === 'releases') return <Releases bot={bot} />
  if (tab === 'details') return <Details bot={bot} />
  return <Workbench bot={bot} />
}

/** Code next to test bench and log; below each other on narrow screens. */
function Workbench({ bot }: { readonly bot: Bot }) {
  const me = useMe()
  return (
    <SimpleGrid cols={{ base: 1, lg: 2 }} spacing="lg">
      <Code bot={bot} />
      <Stack>
        <Title>{texts.bots.bench.title}</Title>
        <Bench bot={bot} />
        {isAdmin(me) && (
          <>
            <Title>{texts.bots.live.title}</Title>
            <Live botId={bot.id ?? ''} />
          </>
        )}
      </Stack>
    </SimpleGrid>
  )
}

/** Limits and schedule of a bot, and the Subscriptions that start it. */
function Details({ bot }: { readonly bot: Bot }) {
  const me = useMe()
  return (
    <Stack>
      <Facts label={detailWords.title} rows={botDetailRows(bot)} />
      <Link href={`/resources/Bot/${bot.id}/form`}>{detailWords.edit}</Link>
      {isAdmin(me) && (
        <>
          <Title>{detailWords.schedule}</Title>
          <ScheduleEditor botId={bot.id ?? ''} />
        </>
      )}
      <Title>{detailWords.subscriptions}</Title>
      <RecordTable<Subscription>
        label={detailWords.subscriptions}
        search={`Subscription?url=Bot/${bot.id}`}
        linkOf={({ id }) => `/resources/Subscription/${id}`}
        columns={[
          { name: detailWords.criteria, cell: ({ criteria }) => criteria },
          { name: detailWords.state, cell: ({ status }) => <Outcome status={status} /> },
        ]}
        empty={<span>{detailWords.none}</span>}
      />
    </Stack>
  )
}

/** Limits are extensions whose url ends with their name. */
function botDetailRows(bot: Bot): readonly (readonly [string, string])[] {
  const flat = (bot.extension ?? []).filter(({ extension }) => extension === undefined)
  const limits = flat.map(({ url, ...value }) => {
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
