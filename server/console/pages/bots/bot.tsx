/** One bot: its code, a bench to try it on, its runs and what is written while they go on. */
import type { Bot } from '@medplum/fhirtypes'
import { useParams } from 'wouter'
import { useGet } from '../../api.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { Views } from '../../parts/tabs.tsx'
import { isAdmin, useMe } from '../../session.ts'
import { texts } from '../../texts/texts.ts'
import { Bench } from './bench.tsx'
import { Code } from './code.tsx'
import { Details } from './details.tsx'
import { Live } from './live.tsx'
import { Runs } from './run-list.tsx'

const TABS = ['code', 'bench', 'runs', 'live', 'details'] as const
type Tab = (typeof TABS)[number]
/** Runs and their logs are for administrators. */
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
