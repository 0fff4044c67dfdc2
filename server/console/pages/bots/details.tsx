/** A bot's limits, its schedule, its subscriptions, and its record. */
import { Stack, Table, Title } from '@mantine/core'
import type { Bot, Bundle, Subscription } from '@medplum/fhirtypes'
import { Link } from 'wouter'
import { useGet } from '../../api.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { DataTable } from '../../parts/table.tsx'
import { texts } from '../../texts/texts.ts'
import { Outcome } from './status.tsx'

const words = texts.bots.details

interface Props {
  readonly bot: Bot
}

export function Details({ bot }: Props) {
  const path = `fhir/R4/Subscription?url=Bot/${bot.id}`
  const subscriptions = useGet<Bundle<Subscription>>(path)
  return (
    <Stack>
      <Table variant="vertical" aria-label={words.title}>
        <Table.Tbody>
          {rowsOf(bot).map(([name, value]) => (
            <Table.Tr key={name}>
              <Table.Th w={220}>{name}</Table.Th>
              <Table.Td>{value}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
      <Link href={`/resources/Bot/${bot.id}`}>{words.edit}</Link>
      <Title order={2} size="h4">
        {words.subscriptions}
      </Title>
      <Loaded query={subscriptions}>
        {({ entry = [] }) => (
          <DataTable
            label={words.subscriptions}
            rows={entry.flatMap(({ resource }) => (resource ? [resource] : []))}
            keyOf={({ id }) => id ?? ''}
            linkOf={({ id }) => `/resources/Subscription/${id}`}
            columns={[
              { name: words.criteria, cell: ({ criteria }) => criteria },
              { name: words.state, cell: ({ status }) => <Outcome status={status} /> },
            ]}
            empty={<span>{words.none}</span>}
          />
        )}
      </Loaded>
    </Stack>
  )
}

/** Limits are extensions whose address ends with their name. */
function rowsOf(bot: Bot): readonly (readonly [string, string])[] {
  const limits = (bot.extension ?? []).map(({ url, ...value }) => {
    const [first] = Object.values(value)
    return [url.replace(/^.*[/:]/, ''), String(first)] as const
  })
  const { cronString, cronTiming, runAsUser, timeout } = bot
  return [
    [words.schedule, cronString ?? (cronTiming ? JSON.stringify(cronTiming) : words.noSchedule)],
    [words.timeout, timeout === undefined ? words.byDefault : `${timeout} s`],
    [words.runAs, runAsUser ? words.asCaller : words.asBot],
    ...limits,
  ]
}
