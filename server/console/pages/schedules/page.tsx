/** Scheduled bots, with next and last run. */
import { Badge } from '@mantine/core'
import { useGet } from '../../client/api.ts'
import { useMe } from '../../client/session.ts'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { texts } from '../../texts/texts.ts'

const words = texts.schedules

interface Planned {
  readonly bot: { readonly reference: string; readonly display?: string }
  readonly cron?: string
  readonly zone?: string
  readonly next: string | null
  readonly last: string | null
  readonly lastStatus: string | null
  readonly isRunning: boolean
}

export function Schedules() {
  const { project } = useMe()
  const found = useGet<{ readonly schedules: readonly Planned[] }>(
    `admin/projects/${project.id}/schedules`,
    { every: 10_000 },
  )
  return (
    <Page title={words.title} hint={words.hint}>
      <Loaded query={found}>
        {({ schedules }) => (
          <DataTable
            label={words.title}
            rows={schedules}
            rowKey={({ bot }) => bot.reference}
            linkOf={({ bot }) => `/bots/${bot.reference.replace('Bot/', '')}/runs`}
            columns={columns}
            empty={<Empty title={words.none} hint={words.noneHint} />}
          />
        )}
      </Loaded>
    </Page>
  )
}

const columns: readonly Column<Planned>[] = [
  { name: words.bot, cell: ({ bot }) => bot.display ?? bot.reference },
  { name: words.cron, cell: ({ cron, zone }) => `${cron} (${zone})` },
  { name: words.next, cell: ({ next }) => <When at={next ?? undefined} /> },
  { name: words.last, cell: ({ last }) => <When at={last ?? undefined} /> },
  { name: words.outcome, cell: (planned) => <Outcome planned={planned} /> },
]

interface OutcomeProps {
  readonly planned: Planned
}

function Outcome({ planned: { isRunning, lastStatus } }: OutcomeProps) {
  const status = isRunning ? words.running : lastStatus
  const color = isRunning ? 'blue' : status === 'ok' ? 'green' : 'red'
  return status === null ? null : (
    <Badge variant="dot" tt="none" color={color}>
      {status}
    </Badge>
  )
}
