/** The bots of the project, with metrics of the last seven days. */
import { Button, Modal, Select, Stack, Text, TextInput } from '@mantine/core'
import { useForm } from '@mantine/form'
import { useDisclosure } from '@mantine/hooks'
import type { Bot } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { useLocation } from 'wouter'
import { notifyProblem, useGet, useSend } from '../../client/api.ts'
import { Problem } from '../../client/problem.tsx'
import { isAdmin, medplum, useMe } from '../../client/session.ts'
import { Empty } from '../../parts/loaded.tsx'
import { Outcome } from '../../parts/outcome.tsx'
import { Page } from '../../parts/page.tsx'
import { PagedTable } from '../../parts/query-table.tsx'
import type { Column } from '../../parts/table.tsx'
import { texts } from '../../texts/texts.ts'
import { type BotFigures, failures, type ProjectFigures, quantile } from './runs.ts'

interface Row {
  readonly bot: Bot
  readonly figures: BotFigures | undefined
}

const words = texts.bots

export function Bots() {
  const me = useMe()
  const [isOpen, { open, close }] = useDisclosure()
  const path = `admin/projects/${me.project.id}/bots/stats`
  const figures = useGet<ProjectFigures>(path, { enabled: isAdmin(me), every: 5000 })
  const create = isAdmin(me) && <Button onClick={open}>{words.create}</Button>
  return (
    <Page title={words.title} hint={words.hint} actions={create}>
      <PagedTable<Bot, Row>
        path="fhir/R4/Bot?_count=200&_sort=name"
        label={words.title}
        rows={(bot) => [toBotRow(bot, figures.data)]}
        columns={columns}
        rowKey={({ bot }) => bot.id ?? ''}
        linkOf={({ bot }) => `/bots/${bot.id}`}
        empty={<Empty title={words.none} hint={words.noneHint} action={create} />}
      />
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
  figure(words.started, ({ started }) => started, 0),
  figure(words.failed, failures, 0),
  figure('p50', ({ runTime }) => quantile(runTime, 0.5)),
  figure('p95', ({ runTime }) => quantile(runTime, 0.95)),
  figure(words.wait, ({ queueWait }) => quantile(queueWait, 0.95)),
]

function figure(
  name: string,
  read: (figures: BotFigures) => React.ReactNode,
  none: React.ReactNode = '–',
): Column<Row> {
  return { name, align: 'right', cell: ({ figures }) => (figures ? read(figures) : none) }
}

interface NewBotProps {
  readonly isOpen: boolean
  readonly close: () => void
}

function NewBot({ isOpen, close }: NewBotProps) {
  const { project } = useMe()
  const [, navigate] = useLocation()
  const templates = useTemplates(isOpen)
  const form = useForm({
    initialValues: { name: '', description: '', template: '' },
    validate: { name: (name) => (name.trim() === '' ? words.nameMissing : null) },
  })
  const template = templates.find(({ name }) => name === form.values.template)
  const create = useSend<typeof form.values, Bot>({
    send: async ({ name, description }) => {
      const bot = await medplum.post(`admin/projects/${project.id}/bot`, { name, description })
      if (template) await deployTemplate(bot, template.code)
      return bot
    },
    after: ({ id }) => navigate(`/bots/${id}`),
    notify: false,
  })
  return (
    <Modal opened={isOpen} onClose={close} title={words.create}>
      <form onSubmit={form.onSubmit((values) => create.mutate(values))}>
        <Stack>
          <TextInput label={words.name} data-autofocus {...form.getInputProps('name')} />
          <TextInput label={words.description} {...form.getInputProps('description')} />
          <Select
            label={words.template}
            description={template?.description ?? words.templateHint}
            placeholder={words.noTemplate}
            data={templates.map(({ name }) => name)}
            searchable
            clearable
            renderOption={({ option }) => (
              <div>
                <Text size="sm">{option.value}</Text>
                <Text size="xs" lineClamp={2}>
                  {templates.find(({ name }) => name === option.value)?.description}
                </Text>
              </div>
            )}
            {...form.getInputProps('template')}
          />
          <Problem error={create.error} />
          <Button type="submit" loading={create.isPending}>
            {words.create}
          </Button>
        </Stack>
      </form>
    </Modal>
  )
}

/** Loads the templates when they are first needed. */
function useTemplates(isOpen: boolean) {
  const { data = [] } = useQuery({
    queryKey: ['bot-templates'],
    queryFn: async () => (await import('console:bot-templates')).botTemplates,
    enabled: isOpen,
    staleTime: Number.POSITIVE_INFINITY,
  })
  return data
}

/** Only notifies of a failure: the bot exists by then. */
async function deployTemplate({ id = '' }: Bot, code: string): Promise<void> {
  const deployment = { code, filename: 'index.ts' }
  try {
    await medplum.post(medplum.fhirUrl('Bot', id, '$deploy'), deployment)
  } catch (error) {
    notifyProblem(error, words.templateRefused)
  }
}
