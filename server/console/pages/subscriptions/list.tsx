/** Subscriptions and their delivery state. */
import type { Subscription } from '@medplum/fhirtypes'
import { Link } from 'wouter'
import { useMe } from '../../client/session.ts'
import { BotLink } from '../../parts/bots.tsx'
import { Empty } from '../../parts/loaded.tsx'
import { Dot } from '../../parts/outcome.tsx'
import { Page } from '../../parts/page.tsx'
import { PagedTable } from '../../parts/query-table.tsx'
import { texts } from '../../texts/texts.ts'
import { type DeliveryState, failsNow, useDeliveryStates } from './states.ts'

const words = texts.subscriptions

interface Row {
  readonly subscription: Subscription
  readonly state: DeliveryState | undefined
}

export function Subscriptions() {
  const me = useMe()
  const states = useDeliveryStates(me)
  return (
    <Page title={words.title} hint={words.hint}>
      <PagedTable<Subscription, Row>
        path="fhir/R4/Subscription?_count=1000&_sort=-_lastUpdated"
        every={10_000}
        label={words.title}
        rows={(subscription) => [{ subscription, state: states?.get(subscription.id ?? '') }]}
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
    </Page>
  )
}

const figure = (name: 'delivered' | 'failed' | 'retrying' | 'waiting') => ({
  name: words[name],
  align: 'right' as const,
  cell: ({ state }: Row) => state?.[name] ?? 0,
})

const columns = [
  { name: words.criteria, cell: ({ subscription }: Row) => subscription.criteria },
  {
    name: words.state,
    cell: ({ subscription, state }: Row) => <Status subscription={subscription} state={state} />,
  },
  { name: words.target, cell: ({ subscription }: Row) => <Target subscription={subscription} /> },
  figure('delivered'),
  figure('failed'),
  figure('retrying'),
  figure('waiting'),
]

interface TargetProps {
  readonly subscription: Subscription
}

export function Target({ subscription: { channel } }: TargetProps) {
  const { endpoint, type } = channel ?? {}
  if (endpoint?.startsWith('Bot/')) return <BotLink reference={endpoint} />
  return endpoint ?? type
}

interface StatusProps {
  readonly subscription: Subscription
  readonly state: Pick<DeliveryState, 'paused' | 'failures' | 'retrying'> | undefined
}

const COLORS: Readonly<Record<string, string>> = { active: 'green', error: 'red', off: 'gray' }

export function Status({ subscription: { status = 'off' }, state }: StatusProps) {
  const isFailing = status !== 'error' && state !== undefined && failsNow(state)
  return (
    <>
      <Dot color={COLORS[status] ?? 'blue'}>{status}</Dot>
      {isFailing && <Dot color="red">{words.failing}</Dot>}
      {state?.paused && <Dot color="orange">{words.paused}</Dot>}
    </>
  )
}
