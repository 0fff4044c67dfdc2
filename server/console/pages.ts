/** All pages: path, visibility in the menu, and lazily loaded file. */
import { type ComponentType, lazy } from 'react'
import { isAdmin, isSuperAdmin, type Me, mayDo } from './client/session.ts'
import { texts } from './texts/texts.ts'

export type Group = keyof typeof texts.groups

export interface PageEntry {
  /** Below `/console`, in wouter's format. */
  readonly path: string
  readonly Page: ComponentType
  /** Absent for pages linked from others. */
  readonly menu?: {
    readonly label: string
    readonly group: Group | undefined
    readonly shows: (me: Me) => boolean
  }
}

const everybody = () => true
const whoMay = (type: string) => (me: Me) => mayDo(me, type)

export const pages: readonly PageEntry[] = [
  {
    path: '/',
    Page: lazy(() => import('./pages/home/home.tsx').then(({ Home }) => ({ default: Home }))),
    menu: { label: texts.home.title, group: undefined, shows: everybody },
  },
  {
    path: '/resources/:type?',
    Page: lazy(() =>
      import('./pages/resources/list.tsx').then(({ Resources }) => ({ default: Resources })),
    ),
    menu: { label: texts.resources.title, group: 'data', shows: everybody },
  },
  {
    path: '/resources/:type/new',
    Page: lazy(() =>
      import('./pages/resources/record.tsx').then(({ NewRecord }) => ({ default: NewRecord })),
    ),
  },
  {
    path: '/resources/:type/:id/:tab?',
    Page: lazy(() =>
      import('./pages/resources/record.tsx').then(({ RecordPage }) => ({ default: RecordPage })),
    ),
  },
  {
    path: '/bots',
    Page: lazy(() => import('./pages/bots/list.tsx').then(({ Bots }) => ({ default: Bots }))),
    menu: { label: texts.bots.title, group: 'work', shows: whoMay('Bot') },
  },
  {
    path: '/bots/:id/runs/:run',
    Page: lazy(() => import('./pages/bots/run.tsx').then(({ RunPage }) => ({ default: RunPage }))),
  },
  {
    path: '/bots/:id/:tab?',
    Page: lazy(() => import('./pages/bots/bot.tsx').then(({ BotPage }) => ({ default: BotPage }))),
  },
  {
    path: '/jobs',
    Page: lazy(() => import('./pages/jobs/list.tsx').then(({ Jobs }) => ({ default: Jobs }))),
    menu: { label: texts.jobs.title, group: 'work', shows: isAdmin },
  },
  {
    path: '/jobs/async/:id',
    Page: lazy(() =>
      import('./pages/jobs/async.tsx').then(({ AsyncPage }) => ({ default: AsyncPage })),
    ),
  },
  {
    path: '/jobs/:kind/:id',
    Page: lazy(() =>
      import('./pages/jobs/bulk.tsx').then(({ BulkPage }) => ({ default: BulkPage })),
    ),
  },
  {
    path: '/graphiql',
    Page: lazy(() => import('./pages/graphiql/page.tsx').then(({ Page }) => ({ default: Page }))),
    menu: { label: texts.graphiql.title, group: 'tools', shows: everybody },
  },
  {
    path: '/members/invite',
    Page: lazy(() =>
      import('./pages/members/invite.tsx').then(({ Invite }) => ({ default: Invite })),
    ),
  },
  {
    path: '/members/new-client',
    Page: lazy(() =>
      import('./pages/members/client.tsx').then(({ NewClient }) => ({ default: NewClient })),
    ),
  },
  {
    path: '/members/member/:id',
    Page: lazy(() =>
      import('./pages/members/member.tsx').then(({ MemberPage }) => ({ default: MemberPage })),
    ),
  },
  {
    path: '/members/:kind?',
    Page: lazy(() =>
      import('./pages/members/list.tsx').then(({ Members }) => ({ default: Members })),
    ),
    menu: { label: texts.members.title, group: 'project', shows: isAdmin },
  },
  {
    path: '/policies',
    Page: lazy(() =>
      import('./pages/policies/list.tsx').then(({ Policies }) => ({ default: Policies })),
    ),
    menu: { label: texts.policies.title, group: 'project', shows: isAdmin },
  },
  {
    path: '/policies/:id',
    Page: lazy(() =>
      import('./pages/policies/policy.tsx').then(({ PolicyPage }) => ({ default: PolicyPage })),
    ),
  },
  {
    path: '/project/:tab?',
    Page: lazy(() =>
      import('./pages/project/project.tsx').then(({ ProjectPage }) => ({ default: ProjectPage })),
    ),
    menu: { label: texts.project.title, group: 'project', shows: isAdmin },
  },
  {
    path: '/subscriptions',
    Page: lazy(() =>
      import('./pages/subscriptions/list.tsx').then(({ Subscriptions }) => ({
        default: Subscriptions,
      })),
    ),
    menu: { label: texts.subscriptions.title, group: 'work', shows: whoMay('Subscription') },
  },
  {
    path: '/subscriptions/:id',
    Page: lazy(() =>
      import('./pages/subscriptions/subscription.tsx').then(({ SubscriptionPage }) => ({
        default: SubscriptionPage,
      })),
    ),
  },
  {
    path: '/schedules',
    Page: lazy(() =>
      import('./pages/schedules/page.tsx').then(({ Schedules }) => ({ default: Schedules })),
    ),
    menu: { label: texts.schedules.title, group: 'work', shows: isAdmin },
  },
  {
    path: '/service/:tab?',
    Page: lazy(() =>
      import('./pages/service/service.tsx').then(({ Service }) => ({ default: Service })),
    ),
    menu: { label: texts.service.title, group: 'service', shows: isSuperAdmin },
  },
  {
    path: '/api',
    Page: lazy(() => import('./pages/api/page.tsx').then(({ Api }) => ({ default: Api }))),
    menu: { label: texts.api.title, group: 'tools', shows: everybody },
  },
]

/** Pages below a menu entry have its visibility. */
export function mayOpen(me: Me, path: string): boolean {
  const [, first] = path.split('/')
  const listed = pages.find((page) => page.menu && page.path.split('/')[1] === first)
  return listed?.menu?.shows(me) ?? true
}
