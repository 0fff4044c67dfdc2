/** The service as a whole, for super administrators. */
import { type ComponentType, lazy, Suspense } from 'react'
import { useParams } from 'wouter'
import { Waiting } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { Views } from '../../parts/tabs.tsx'
import { texts } from '../../texts/texts.ts'
import { Health } from './health.tsx'
import { Mails } from './mails.tsx'
import { Projects } from './projects.tsx'
import { Queues } from './queues.tsx'
import { Workers } from './workers.tsx'

const words = texts.service

// The library of charts is as large as all else on this page.
const Metrics = lazy(() => import('./metrics.tsx').then((file) => ({ default: file.Metrics })))

const PANELS = {
  health: Health,
  projects: Projects,
  queues: Queues,
  workers: Workers,
  mails: Mails,
  metrics: Metrics,
} satisfies Record<keyof typeof words.tabs, ComponentType>
const TABS = ['health', 'projects', 'queues', 'workers', 'mails', 'metrics'] as const

export function Service() {
  const { tab: asked } = useParams<{ tab?: string }>()
  const tab = TABS.find((name) => name === asked) ?? 'health'
  const Panel = PANELS[tab]
  return (
    <Page title={words.title} hint={words.hint}>
      <Views names={TABS} labels={words.tabs} open={tab} address="/service">
        <Suspense fallback={<Waiting />}>
          <Panel />
        </Suspense>
      </Views>
    </Page>
  )
}
