/** Scheduled bots, with next and last run. */
import { Button, Modal, Stack } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import { useState } from 'react'
import { useGet } from '../../client/api.ts'
import { useMe } from '../../client/session.ts'
import { BotSelect } from '../../parts/bots.tsx'
import { Empty } from '../../parts/loaded.tsx'
import { Dot, RunOutcome } from '../../parts/outcome.tsx'
import { Page } from '../../parts/page.tsx'
import { QueryTable } from '../../parts/query-table.tsx'
import type { Column } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import words from '../../texts/schedules.json' with { type: 'json' }
import { ScheduleEditor } from './editor.tsx'

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
  const [isOpen, { open, close }] = useDisclosure()
  const create = <Button onClick={open}>{words.create}</Button>
  return (
    <Page title={words.title} hint={words.hint} actions={create}>
      <NewSchedule isOpen={isOpen} close={close} />
      <QueryTable
        query={found}
        label={words.title}
        rows={({ schedules }) => schedules}
        rowKey={({ bot }) => bot.reference}
        linkOf={({ bot }) => `/bots/${bot.reference.replace('Bot/', '')}/details`}
        columns={columns}
        empty={<Empty title={words.none} hint={words.noneHint} action={create} />}
      />
    </Page>
  )
}

interface NewScheduleProps {
  readonly isOpen: boolean
  readonly close: () => void
}

function NewSchedule({ isOpen, close }: NewScheduleProps) {
  const [botId, setBotId] = useState<string | null>(null)
  return (
    <Modal opened={isOpen} onClose={close} title={words.create}>
      <Stack>
        <BotSelect
          label={words.bot}
          placeholder={words.chooseBot}
          value={botId}
          onChange={setBotId}
          data-autofocus
        />
        {botId !== null && <ScheduleEditor key={botId} botId={botId} after={close} />}
      </Stack>
    </Modal>
  )
}

const columns: readonly Column<Planned>[] = [
  { name: words.bot, cell: ({ bot }) => bot.display ?? bot.reference },
  { name: words.cron, cell: ({ cron, zone }) => `${cron} (${zone})` },
  { name: words.next, cell: ({ next }) => <When at={next ?? undefined} /> },
  { name: words.last, cell: ({ last }) => <When at={last ?? undefined} /> },
  { name: words.outcome, cell: (planned) => <Outcome planned={planned} /> },
]

function Outcome({ planned: { isRunning, lastStatus } }: { readonly planned: Planned }) {
  if (!isRunning) return lastStatus === null ? null : <RunOutcome status={lastStatus} />
  return <Dot color="blue">{words.running}</Dot>
}
