/** One bot: its code, a bench to try it on, its runs and what is written while they go on. */
import { Tabs } from '@mantine/core'
import type { Bot } from '@medplum/fhirtypes'
import { useLocation, useParams } from 'wouter'
import { useGet } from '../../api.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { isAdmin, useMe } from '../../session.ts'
import { texts } from '../../texts/texts.ts'
import { Bench } from './bench.tsx'
import { Code } from './code.tsx'
import { Details } from './details.tsx'
import { Live } from './live.tsx'
import { Runs } from './run-list.tsx'

const words = texts.bots.tabs
const TABS = ['code', 'bench', 'runs', 'live', 'details'] as const
/** Runs and their logs are for administrators. */
const FOR_ADMINS: readonly string[] = ['runs', 'live']

export function BotPage() {
  const { id, tab = 'code' } = useParams<{ id: string; tab?: string }>()
  const [, navigate] = useLocation()
  const me = useMe()
  const bot = useGet<Bot>(`fhir/R4/Bot/${id}`)
  const shown = TABS.filter((name) => isAdmin(me) || !FOR_ADMINS.includes(name))
  return (
    <Loaded query={bot}>
      {(data) => (
        <Page title={data.name ?? id} hint={data.description}>
          <Tabs
            value={tab}
            onChange={(name) => navigate(`/bots/${id}/${name}`)}
            keepMounted={false}
          >
            <Tabs.List mb="md">
              {shown.map((name) => (
                <Tabs.Tab key={name} value={name}>
                  {words[name]}
                </Tabs.Tab>
              ))}
            </Tabs.List>
            <Tabs.Panel value="code">
              <Code bot={data} />
            </Tabs.Panel>
            <Tabs.Panel value="bench">
              <Bench bot={data} />
            </Tabs.Panel>
            <Tabs.Panel value="runs">
              <Runs botId={id} />
            </Tabs.Panel>
            <Tabs.Panel value="live">
              <Live botId={id} />
            </Tabs.Panel>
            <Tabs.Panel value="details">
              <Details bot={data} />
            </Tabs.Panel>
          </Tabs>
        </Page>
      )}
    </Loaded>
  )
}
