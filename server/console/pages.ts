/** All pages: path, visibility in the menu, and lazily loaded file. */
import { type ComponentType, lazy } from 'react'
import { isAdmin, isSuperAdmin, type Me, mayDo } from './client/session.ts'
import { texts } from './texts/texts.ts'

type Group = keyof typeof texts.groups

interface Menu {
  readonly label: string
  readonly group: Group | undefined
  readonly shows: (me: Me) => boolean
}

export interface PageEntry {
  /** Below `/console`, in wouter's format. */
  readonly path: string
  readonly Page: ComponentType
  /** Absent for pages linked from others. */
  readonly menu?: Menu | undefined
}

/** `name`: the component that the file exports. */
function page<Name extends string>(
  path: string,
  load: () => Promise<Readonly<Record<Name, ComponentType>>>,
  name: Name,
  menu?: Menu,
): PageEntry {
  const Page = lazy<ComponentType>(async () => ({ default: (await load())[name] }))
  return { path, Page, menu }
}

const everybody = () => true
const whoMay = (type: string) => (me: Me) => mayDo(me, type)

export const pages: readonly PageEntry[] = [
  page('/', () => import('./pages/home/home.tsx'), 'Home', {
    label: texts.home.title,
    group: undefined,
    shows: everybody,
  }),
  page('/resources/:type?', () => import('./pages/resources/list.tsx'), 'Resources', {
    label: texts.resources.title,
    group: 'data',
    shows: everybody,
  }),
  page('/resources/:type/new', () => import('./pages/resources/record.tsx'), 'NewRecord'),
  page('/resources/:type/:id/:tab?', () => import('./pages/resources/record.tsx'), 'RecordPage'),
  page('/bots', () => import('./pages/bots/list.tsx'), 'Bots', {
    label: texts.bots.title,
    group: 'work',
    shows: whoMay('Bot'),
  }),
  page('/bots/:id/runs/:run', () => import('./pages/bots/run.tsx'), 'RunPage'),
  page('/bots/:id/:tab?', () => import('./pages/bots/bot.tsx'), 'BotPage'),
  page('/runs', () => import('./pages/bots/run-list.tsx'), 'AllRuns', {
    label: texts.bots.runs.title,
    group: 'work',
    shows: isAdmin,
  }),
  page('/dead-letters', () => import('./pages/dead-letters/list.tsx'), 'DeadLetters', {
    label: texts.deadLetters.title,
    group: 'work',
    shows: isAdmin,
  }),
  page('/dead-letters/:id', () => import('./pages/dead-letters/letter.tsx'), 'LetterPage'),
  page('/jobs', () => import('./pages/jobs/list.tsx'), 'Jobs', {
    label: texts.jobs.title,
    group: 'work',
    shows: isAdmin,
  }),
  page('/jobs/async/:id', () => import('./pages/jobs/async.tsx'), 'AsyncPage'),
  page('/jobs/:kind/:id', () => import('./pages/jobs/bulk.tsx'), 'BulkPage'),
  page('/graphiql', () => import('./pages/graphiql/page.tsx'), 'Page', {
    label: texts.graphiql.title,
    group: 'tools',
    shows: everybody,
  }),
  page('/members/invite', () => import('./pages/members/invite.tsx'), 'Invite'),
  page('/members/new-client', () => import('./pages/members/client.tsx'), 'NewClient'),
  page('/members/member/:id', () => import('./pages/members/member.tsx'), 'MemberPage'),
  page('/members/:kind?', () => import('./pages/members/list.tsx'), 'Members', {
    label: texts.members.title,
    group: 'project',
    shows: isAdmin,
  }),
  page('/profile', () => import('./pages/profile/profile.tsx'), 'ProfilePage'),
  page('/policies', () => import('./pages/policies/list.tsx'), 'Policies', {
    label: texts.policies.title,
    group: 'project',
    shows: isAdmin,
  }),
  page('/policies/:id', () => import('./pages/policies/policy.tsx'), 'PolicyPage'),
  page('/project/:tab?', () => import('./pages/project/project.tsx'), 'ProjectPage', {
    label: texts.project.title,
    group: 'project',
    shows: isAdmin,
  }),
  page('/subscriptions', () => import('./pages/subscriptions/list.tsx'), 'Subscriptions', {
    label: texts.subscriptions.title,
    group: 'work',
    shows: whoMay('Subscription'),
  }),
  page(
    '/subscriptions/:id',
    () => import('./pages/subscriptions/subscription.tsx'),
    'SubscriptionPage',
  ),
  page('/agents', () => import('./pages/agents/list.tsx'), 'Agents', {
    label: texts.agents.title,
    group: 'work',
    shows: whoMay('Agent'),
  }),
  page('/agents/:id/:tab?', () => import('./pages/agents/agent.tsx'), 'AgentPage'),
  page('/schedules', () => import('./pages/schedules/page.tsx'), 'Schedules', {
    label: texts.schedules.title,
    group: 'work',
    shows: isAdmin,
  }),
  page('/service/:tab?', () => import('./pages/service/service.tsx'), 'Service', {
    label: texts.service.title,
    group: 'service',
    shows: isSuperAdmin,
  }),
  page('/api', () => import('./pages/api/page.tsx'), 'Api', {
    label: texts.api.title,
    group: 'tools',
    shows: everybody,
  }),
]

/** Pages below a menu entry have its visibility. */
export function mayOpen(me: Me, path: string): boolean {
  const [, first] = path.split('/')
  const listed = pages.find((page) => page.menu && page.path.split('/')[1] === first)
  return listed?.menu?.shows(me) ?? true
}
