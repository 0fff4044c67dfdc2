/** Subscriptions and their delivery state. */
import { Badge } from '@mantine/core'
import type { Bundle, Subscription } from '@medplum/fhirtypes'
import { Link } from 'wouter'
import { useGet } from '../../client/api.ts'
import { isAdmin, useMe } from '../../client/session.ts'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { DataTable } from '../../parts/table.tsx'
import { texts } from '../../texts/texts.ts'

const words = texts.subscriptions

interface State {
  readonly subscription: { readonly reference: string }
  readonly delivered: number
  readonly failed: number
  readonly waiting: number
  readonly paused: string | null
}

interface Row {
  readonly subscription: Subscription
  readonly state: State | undefined
}

export function Subscriptions() {
  const me = useMe()
  const found = useGet<Bundle<Subscription>>(
    'fhir/R4/Subscription?_count=1000&_sort=-_lastUpdated',
    { every: 10_000 },
  )
  const states = useGet<{ readonly subscriptions: readonly State[] }>(
    `admin/projects/${me.project.id}/subscriptions`,
    { enabled: isAdmin(me), every: 10_000 },
  )
  const findState = (id: string | undefined) =>
    states.data?.subscriptions.find(
      ({ subscription }) => subscription.reference === `Subscription/${id}`,
    )
  return (
    <Page title={words.title} hint={words.hint}>
      <Loaded query={found}>
        {({ entry = [] }) => (
          <DataTable
            label={words.title}
            rows={entry.flatMap(({ resource }): Row[] =>
              resource ? [{ subscription: resource, state: findState(resource.id) }] : [],
            )}
            rowKey={({ subscription }) => subscription.id ?? ''}
            linkOf={({ subscription }) => `/subscriptions/${subscription.id}`}
            columns={columns}
            empty={
              <Empty
                title={words.none}
                hint={words.noneHint}
                action={<Link href="/resources/Subscription/new">{words.create}</Link>}
              />
            }
          />
        )}
      </Loaded>
    </Page>
  )
}

const figure = (name: 'delivered' | 'failed' | 'waiting') => ({
  name: words[name],
  align: 'right' as const,
  cell: ({ state }: Row) => state?.[name] ?? 0,
})

const columns = [
  { name: words.criteria, cell: ({ subscription }: Row) => subscription.criteria },
  {
    name: words.state,
    cell: ({ subscription, state }: Row) => (
      <Status subscription={subscription} isPaused={Boolean(state?.paused)} />
    ),
  },
  { name: words.target, cell: ({ subscription }: Row) => channelTarget(subscription) },
  figure('delivered'),
  figure('failed'),
  figure('waiting'),
]

export function channelTarget({ channel }: Subscription): string {
  return channel?.endpoint ?? channel?.type ?? ''
}

interface StatusProps {
  readonly subscription: Subscription
  readonly isPaused: boolean
}

const COLORS: Readonly<Record<string, string>> = { active: 'green', error: 'red', off: 'gray' }

export function Status({ subscription: { status = 'off' }, isPaused }: StatusProps) {
  return (
    <>
      <Badge variant="dot" tt="none" color={COLORS[status] ?? 'blue'}>
        {status}
      </Badge>
      {isPaused && (
        <Badge variant="dot" tt="none" color="orange">
          {words.paused}
        </Badge>
      )}
    </>
  )
}
