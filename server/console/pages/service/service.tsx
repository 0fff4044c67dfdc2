/** Service administration, for super administrators. */

import { Button, Code, Spoiler, Stack, Text, TextInput, Title } from '@mantine/core'
import type { Project } from '@medplum/fhirtypes'
import { type ComponentType, lazy, Suspense } from 'react'
import { useParams } from 'wouter'
import { useGet } from '../../client/api.ts'
import { medplum, openProject, useMe } from '../../client/session.ts'
import { ConfirmedAction } from '../../parts/action.tsx'
import { Form } from '../../parts/form.tsx'
import { Empty, Loaded, Waiting } from '../../parts/loaded.tsx'
import { Page, Views } from '../../parts/page.tsx'
import { QueryTable, RecordTable } from '../../parts/query-table.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import { Hint } from '../../parts/text.tsx'
import { When } from '../../parts/when.tsx'
import words from '../../texts/service.json' with { type: 'json' }
import { fill, texts } from '../../texts/texts.ts'
import { Health, State } from './health.tsx'

// The chart library is as large as the rest of this page.
const Metrics = lazy(() => import('./metrics.tsx').then((file) => ({ default: file.Metrics })))

const PANELS = {
  health: Health,
  projects: Projects,
  queues: Queues,
  workers: Workers,
  mails: Mails,
  metrics: Metrics,
} satisfies Record<keyof typeof words.tabs, ComponentType>
const TABS = Object.keys(PANELS) as (keyof typeof PANELS)[]

export function Service() {
  const { tab: asked } = useParams<{ tab?: string }>()
  const tab = TABS.find((name) => name === asked) ?? 'health'
  const Panel = PANELS[tab]
  return (
    <Page title={words.title} hint={words.hint}>
      <Views names={TABS} labels={words.tabs} open={tab} address="/service">
        <Suspense fallback={<Waiting />}>
          <Panel />
        </Suspense>
      </Views>
    </Page>
  )
}

function Projects() {
  return (
    <Stack>
      <RecordTable<Project>
        label={words.tabs.projects}
        search="Project?_count=1000&_sort=-_lastUpdated"
        linkOf={({ id }) => `/resources/Project/${id}`}
        empty={<Empty title={words.noProjects} />}
        columns={[
          { name: words.name, cell: ({ name, id }) => name ?? id },
          { name: words.features, cell: ({ features }) => features?.join(', ') },
          {
            name: words.open,
            cell: ({ id = '', name = id }) => <Open id={id} name={name} />,
          },
          { name: words.created, cell: ({ meta }) => <When at={meta?.lastUpdated} /> },
        ]}
      />
      <Form
        name="new-project"
        saved={{ name: '' }}
        send={({ name }) => medplum.post('admin/Project', { resourceType: 'Project', name })}
        done={texts.common.saved}
        submit={words.make}
      >
        {({ text }) => <TextInput maw={400} label={words.projectName} {...text('name')} />}
      </Form>
    </Stack>
  )
}

interface OpenProps {
  readonly id: string
  readonly name: string
}

/** A super administrator becomes an administrator of the project, which its members and its audit trail show. */
function Open({ id, name }: OpenProps) {
  const { project, profile, user, security } = useMe()
  const isMember = security?.memberships?.some(
    (membership) => membership.project?.reference === `Project/${id}`,
  )
  const join = () =>
    medplum.post(`admin/projects/${id}/invite`, {
      resourceType: 'Practitioner',
      ...formatPersonName(profile.name),
      email: user?.email,
      sendEmail: false,
      membership: { admin: true },
    })
  if (id === project.id || user?.email === undefined) return null
  if (isMember) {
    return (
      <Button size="xs" variant="default" onClick={() => void openProject(id)}>
        {words.open}
      </Button>
    )
  }
  return (
    <ConfirmedAction
      label={words.open}
      color="blue"
      confirm={fill(words.join, { name })}
      send={join}
      after={() => void openProject(id)}
    >
      <Text size="sm">{words.joinHint}</Text>
    </ConfirmedAction>
  )
}

function formatPersonName(names: unknown): { firstName: string; lastName: string } {
  const [name] = Array.isArray(names) ? names : []
  return {
    firstName: name?.given?.[0] ?? words.superFirstName,
    lastName: name?.family ?? words.superLastName,
  }
}

interface Mail {
  readonly id: string
  readonly state: string
  readonly added: string
  readonly attempts: number
  readonly error: string | null
  readonly message: {
    readonly to: readonly string[]
    readonly subject: string
    readonly text?: string
  }
}

/** The outbox: without a mail server, the place to find invitation links. */
function Mails() {
  const found = useGet<{ readonly mails: readonly Mail[] }>('admin/super/mails', { every: 10_000 })
  return (
    <QueryTable
      query={found}
      label={words.tabs.mails}
      rows={({ mails }) => mails}
      rowKey={({ id }) => id}
      empty={<Empty title={words.noMails} hint={words.noMailsHint} />}
      columns={[
        { name: words.to, cell: ({ message }) => message.to.join(', ') },
        { name: words.subject, cell: ({ message }) => message.subject },
        { name: words.mailState, cell: ({ state }) => state },
        { name: words.attempts, align: 'right', cell: ({ attempts }) => attempts },
        { name: words.error, cell: ({ error }) => error },
        { name: words.added, cell: ({ added }) => <When at={added} /> },
        { name: words.text, cell: ({ message }) => <Body text={message.text ?? ''} /> },
      ]}
    />
  )
}

function Body({ text }: { readonly text: string }) {
  return (
    <Spoiler maxHeight={24} showLabel={texts.common.more} hideLabel={texts.common.close}>
      <Code style={{ whiteSpace: 'pre-wrap' }}>{text}</Code>
    </Spoiler>
  )
}

interface QueuesAnswer {
  readonly queues: Readonly<Record<string, Depths>>
  readonly projects: readonly Row[]
  readonly lanes: readonly Row[]
  readonly upkeep: readonly Row[]
}

interface Depths {
  readonly waiting: number
  readonly prioritized: number
  readonly active: number
  readonly delayed: number
  readonly failed: number
  readonly oldestMs: number | null
}

type Row = Readonly<Record<string, unknown>>

function Queues() {
  const found = useGet<QueuesAnswer>('admin/super/queues', { every: 5000 })
  return (
    <Loaded query={found}>
      {({ queues, lanes, projects, upkeep }) => (
        <Stack>
          <DataTable
            label={words.tabs.queues}
            rows={Object.entries(queues)}
            rowKey={([name]) => name}
            columns={columns}
          />
          <Rows title={words.lanes} rows={lanes} none={words.noLanes} />
          <Rows title={words.work} rows={projects} none={words.noWork} />
          <Rows title={words.upkeep} rows={upkeep} none={words.noUpkeep} />
        </Stack>
      )}
    </Loaded>
  )
}

const columns: readonly Column<readonly [string, Depths]>[] = [
  { name: words.queue, cell: ([name]) => name },
  { name: words.waiting, align: 'right', cell: ([, one]) => one.waiting + one.prioritized },
  { name: words.active, align: 'right', cell: ([, one]) => one.active },
  { name: words.delayed, align: 'right', cell: ([, one]) => one.delayed },
  { name: words.failed, align: 'right', cell: ([, one]) => one.failed },
  { name: words.oldest, align: 'right', cell: ([, { oldestMs }]) => formatSeconds(oldestMs) },
]

function formatSeconds(ms: number | null): string {
  return ms === null ? '–' : `${Math.round(ms / 100) / 10} s`
}

interface RowsProps {
  readonly title: string
  readonly rows: readonly Row[]
  readonly none: string
}

function Rows({ title, rows, none }: RowsProps) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))]
  return (
    <div>
      <Title>{title}</Title>
      <DataTable
        label={title}
        rows={rows}
        rowKey={(row) => JSON.stringify(row)}
        columns={names.map((name) => ({ name, cell: (row: Row) => shown(row[name]) }))}
        empty={<Hint>{none}</Hint>}
      />
    </div>
  )
}

function shown(value: unknown): string {
  return typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value ?? '–')
}

const CLOCK = [words.onTime, words.offTime] as const

interface WorkersAnswer {
  readonly workers: readonly { readonly id: string; readonly isOnTime: boolean }[]
  readonly metrics: readonly Readonly<Record<string, readonly Value[]>>[]
}

interface Value {
  readonly value: number
  readonly [label: string]: string | number
}

interface Line {
  readonly place: number
  readonly name: string
  readonly labels: string
  readonly value: number
}

function Workers() {
  const found = useGet<WorkersAnswer>('admin/super/workers', { every: 5000 })
  return (
    <Loaded query={found}>
      {({ workers, metrics }) => (
        <Stack>
          <DataTable
            label={words.tabs.workers}
            rows={workers}
            rowKey={({ id }) => id}
            empty={<Empty title={words.noWorkers} hint={words.noWorkersHint} />}
            columns={[
              { name: words.worker, cell: ({ id }) => id },
              {
                name: words.clock,
                cell: ({ isOnTime }) => <State isWell={isOnTime} words={CLOCK} />,
              },
            ]}
          />
          <Title>{words.executors}</Title>
          <DataTable
            label={words.executors}
            rows={toMetricLines(metrics)}
            rowKey={({ place, name, labels }) => `${place} ${name} ${labels}`}
            empty={<Empty title={words.noExecutors} />}
            columns={[
              { name: words.metric, cell: ({ name, labels }) => `${name} ${labels}` },
              { name: words.value, align: 'right', cell: ({ value }) => value },
            ]}
          />
        </Stack>
      )}
    </Loaded>
  )
}

function toMetricLines(metrics: WorkersAnswer['metrics']): readonly Line[] {
  return metrics.flatMap((worker, place) =>
    Object.entries(worker).flatMap(([name, values]) =>
      values.map(({ value, ...labels }) => ({
        place,
        name,
        labels: Object.values(labels).join(' '),
        value,
      })),
    ),
  )
}
