/** One Subscription: deliveries, failures and redelivery. */
import { Button, Group, SimpleGrid, Stack, Text, Title } from '@mantine/core'
import { notifications } from '@mantine/notifications'
import type { Bundle, Parameters, Resource, Subscription } from '@medplum/fhirtypes'
import { Link, useParams } from 'wouter'
import { useGet, useSend } from '../../client/api.ts'
import { isAdmin, medplum, useMe } from '../../client/session.ts'
import { Form } from '../../parts/form.tsx'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { QueryTable } from '../../parts/query-table.tsx'
import { Hint } from '../../parts/text.tsx'
import { TimeInput, toInstant } from '../../parts/time-input.tsx'
import { When } from '../../parts/when.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { Status, Target } from './list.tsx'
import { useDeliveryStates } from './states.ts'

const words = texts.subscriptions

/** The first entry of `$status`; FHIR R4 lacks a type for it. */
type StatusBundle = Bundle<Resource & Report>
interface Report {
  readonly error?: readonly { readonly text: string }[]
  readonly extension?: readonly {
    readonly url: string
    readonly valueInteger?: number
    readonly valueInstant?: string
  }[]
}

export function SubscriptionPage() {
  const { id = '' } = useParams<{ id: string }>()
  const me = useMe()
  const address = `fhir/R4/Subscription/${id}`
  const found = useGet<Subscription>(address)
  const status = useGet<StatusBundle>(`${address}/$status`, { every: 5000 })
  return (
    <Loaded query={found}>
      {(subscription) => (
        <Page
          title={subscription.criteria ?? id}
          hint={subscription.reason}
          actions={
            <Button component={Link} href={`/resources/Subscription/${id}`} variant="default">
              {words.record}
            </Button>
          }
        >
          <Loaded query={status}>
            {({ entry }) => <Figures subscription={subscription} report={entry?.[0]?.resource} />}
          </Loaded>
          {isAdmin(me) && <Deliveries id={id} />}
        </Page>
      )}
    </Loaded>
  )
}

interface FiguresProps {
  readonly subscription: Subscription
  readonly report: Report | undefined
}

function Figures({ subscription, report }: FiguresProps) {
  const { extension = [], error = [] } = report ?? {}
  const found = (name: string) => extension.find(({ url }) => url.endsWith(`subscription-${name}`))
  const paused = found('paused-until')?.valueInstant
  const count = (name: string) => found(name)?.valueInteger ?? 0
  const states = useDeliveryStates(useMe())
  const failures = states?.get(subscription.id ?? '')?.failures ?? 0
  const state = { paused: paused ?? null, failures, retrying: count('retrying') }
  return (
    <Stack gap="xs">
      <SimpleGrid cols={{ base: 2, sm: 3, lg: 6 }}>
        <Figure name={words.state}>
          <Status subscription={subscription} state={state} />
        </Figure>
        <Figure name={words.target}>
          <Target subscription={subscription} />
        </Figure>
        <Figure name={words.delivered}>{count('delivered')}</Figure>
        <Figure name={words.failed}>{count('failed')}</Figure>
        <Figure name={words.retrying}>{count('retrying')}</Figure>
        <Figure name={words.waiting}>{count('waiting')}</Figure>
      </SimpleGrid>
      {error.map(({ text }) => (
        <Text key={text} size="sm" c="var(--mantine-color-error)">
          {words.lastError}: {text}
        </Text>
      ))}
      {paused && (
        <Text size="sm">
          {words.pausedUntil} <When at={paused} />
        </Text>
      )}
    </Stack>
  )
}

interface FigureProps {
  readonly name: string
  readonly children: React.ReactNode
}

function Figure({ name, children }: FigureProps) {
  return (
    <div style={{ overflowWrap: 'anywhere' }}>
      <Text size="xs" c="dimmed">
        {name}
      </Text>
      <Text component="div">{children}</Text>
    </div>
  )
}

interface Pending {
  readonly id: string
  readonly resource: { readonly reference: string }
  readonly version: number
  readonly interaction: string
  readonly state: string
  readonly attempts: number
  readonly added: string
  readonly due: string
  readonly error: string | null
}

/** A delivery that waits after a failure is being retried, in the word of the counts. */
function deliveryState({ state, error }: Pending): string {
  const name = state !== 'failed' && error !== null ? 'retrying' : state
  return words.states[name as keyof typeof words.states] ?? name
}

interface DeliveriesProps {
  readonly id: string
}

function Deliveries({ id }: DeliveriesProps) {
  const { project } = useMe()
  const found = useGet<{ readonly deliveries: readonly Pending[] }>(
    `admin/projects/${project.id}/subscriptions/${id}`,
    { every: 5000 },
  )
  const resend = useSend<Pending>({
    send: ({ resource: { reference }, interaction }) =>
      medplum.post(`fhir/R4/${reference}/$resend`, {
        interaction,
        subscription: `Subscription/${id}`,
      }),
    done: words.resent,
  })
  return (
    <Stack>
      <Title>{words.pending}</Title>
      <QueryTable
        query={found}
        label={words.pending}
        rows={({ deliveries }) => deliveries}
        rowKey={(one) => one.id}
        linkOf={({ resource }) => `/resources/${resource.reference}`}
        empty={<Empty title={words.nothing} hint={words.nothingHint} />}
        columns={[
          { name: words.resource, cell: ({ resource }) => resource.reference },
          { name: words.interaction, cell: ({ interaction }) => interaction },
          { name: words.state, cell: (one) => deliveryState(one) },
          { name: words.attempts, align: 'right', cell: ({ attempts }) => attempts },
          { name: words.answer, cell: ({ error }) => error },
          { name: words.added, cell: ({ added }) => <When at={added} /> },
          {
            name: words.again,
            cell: (one) => (
              <Button
                size="compact-xs"
                variant="default"
                loading={resend.isPending}
                onClick={() => resend.mutate(one)}
              >
                {words.resend}
              </Button>
            ),
          },
        ]}
      />
      <Redeliver id={id} />
    </Stack>
  )
}

function Redeliver({ id }: DeliveriesProps) {
  const send = ({ since, until }: { since: string; until: string }): Promise<Parameters> =>
    medplum.post(`fhir/R4/Subscription/${id}/$redeliver`, {
      ...(since === '' ? {} : { since: toInstant(since) }),
      ...(until === '' ? {} : { until: toInstant(until) }),
    })
  return (
    <Stack maw={640} gap="xs">
      <Title>{words.redeliver}</Title>
      <Hint>{words.redeliverHint}</Hint>
      <Form
        name={`redeliver:${id}`}
        saved={{ since: '', until: '' }}
        send={send}
        after={({ parameter }) => {
          const count = parameter?.[0]?.valueInteger ?? 0
          notifications.show({ message: fill(words.redelivered, { count }) })
        }}
        submit={words.redeliver}
      >
        {({ text }) => (
          <Group grow align="start">
            <TimeInput type="datetime-local" label={words.since} {...text('since')} />
            <TimeInput type="datetime-local" label={words.until} {...text('until')} />
          </Group>
        )}
      </Form>
    </Stack>
  )
}
