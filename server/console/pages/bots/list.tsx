/** The bots of the project, with metrics of the last seven days. */
import { Button, Modal, Stack, TextInput } from '@mantine/core'
import { useForm } from '@mantine/form'
import { useDisclosure } from '@mantine/hooks'
import type { Bot, Bundle } from '@medplum/fhirtypes'
import { useLocation } from 'wouter'
import { useGet, useSend } from '../../client/api.ts'
import { Problem } from '../../client/problem.tsx'
import { isAdmin, medplum, useMe } from '../../client/session.ts'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import { texts } from '../../texts/texts.ts'
import { type BotFigures, failures, type ProjectFigures, quantile } from './runs.ts'
import { Outcome } from './status.tsx'

interface Row {
  readonly bot: Bot
  readonly figures: BotFigures | undefined
}

const words = texts.bots

export function Bots() {
  const me = useMe()
  const [isOpen, { open, close }] = useDisclosure()
  const bots = useGet<Bundle<Bot>>('fhir/R4/Bot?_count=200&_sort=name')
  const path = `admin/projects/${me.project.id}/bots/stats`
  const figures = useGet<ProjectFigures>(path, { enabled: isAdmin(me), every: 5000 })
  const create = isAdmin(me) && <Button onClick={open}>{words.create}</Button>
  return (
    <Page title={words.title} hint={words.hint} actions={create}>
      <Loaded query={bots}>
        {({ entry = [] }) => (
          <DataTable
            label={words.title}
            rows={entry.flatMap(({ resource: bot }) => (bot ? [toBotRow(bot, figures.data)] : []))}
            columns={columns}
            rowKey={({ bot }) => bot.id ?? ''}
            linkOf={({ bot }) => `/bots/${bot.id}`}
            empty={<Empty title={words.none} hint={words.noneHint} action={create} />}
          />
        )}
      </Loaded>
      <NewBot isOpen={isOpen} close={close} />
    </Page>
  )
}

function toBotRow(bot: Bot, figures: ProjectFigures | undefined): Row {
  return { bot, figures: figures?.bots.find((item) => item.bot.reference === `Bot/${bot.id}`) }
}

const columns: readonly Column<Row>[] = [
  { name: words.name, cell: ({ bot }) => bot.name },
  {
    name: words.state,
    cell: ({ bot }) => <Outcome status={bot.executableCode ? 'deployed' : 'empty'} />,
  },
  { name: words.started, align: 'right', cell: ({ figures }) => figures?.started ?? 0 },
  {
    name: words.failed,
    align: 'right',
    cell: ({ figures }) => (figures ? failures(figures) : 0),
  },
  {
    name: 'p50',
    align: 'right',
    cell: ({ figures }) => (figures ? quantile(figures.runTime, 0.5) : '–'),
  },
  {
    name: 'p95',
    align: 'right',
    cell: ({ figures }) => (figures ? quantile(figures.runTime, 0.95) : '–'),
  },
  {
    name: words.wait,
    align: 'right',
    cell: ({ figures }) => (figures ? quantile(figures.queueWait, 0.95) : '–'),
  },
]

interface NewBotProps {
  readonly isOpen: boolean
  readonly close: () => void
}

function NewBot({ isOpen, close }: NewBotProps) {
  const { project } = useMe()
  const [, navigate] = useLocation()
  const form = useForm({
    initialValues: { name: '', description: '' },
    validate: { name: (name) => (name.trim() === '' ? words.nameMissing : null) },
  })
  const create = useSend<typeof form.values, Bot>({
    send: (body) => medplum.post(`admin/projects/${project.id}/bot`, body),
    after: ({ id }) => navigate(`/bots/${id}`),
    notify: false,
  })
  return (
    <Modal opened={isOpen} onClose={close} title={words.create}>
      <form onSubmit={form.onSubmit((values) => create.mutate(values))}>
        <Stack>
          <TextInput label={words.name} data-autofocus {...form.getInputProps('name')} />
          <TextInput label={words.description} {...form.getInputProps('description')} />
          <Problem error={create.error} />
          <Button type="submit" loading={create.isPending}>
            {words.create}
          </Button>
        </Stack>
      </form>
    </Modal>
  )
}
