/** The versions of a bot's code with their labels, results of runs and differences. */
import { Button, Code, Group, NativeSelect, Stack, Title } from '@mantine/core'
import type { Bot, Parameters, ParametersParameter } from '@medplum/fhirtypes'
import { useState } from 'react'
import { useGet, useSend } from '../../client/api.ts'
import { isAdmin, medplum, useMe } from '../../client/session.ts'
import { Confirm } from '../../parts/action.tsx'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Dot } from '../../parts/outcome.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import words from '../../texts/releases.json' with { type: 'json' }
import { fill } from '../../texts/texts.ts'
import { startJob } from '../jobs/new.tsx'
import { DryRun } from './dry-run.tsx'
import { failures, milliseconds, type Outcomes, type ProjectFigures } from './runs.ts'

const LIVE = 'live'
const SHARES = [0, 1, 5, 10, 25, 50, 100]

interface Label {
  readonly name: string
  readonly share: number
}

interface Release {
  readonly version: string
  readonly deployed: string | undefined
  readonly by: string | undefined
  readonly code: string | undefined
  readonly labels: readonly Label[]
}

interface ReleasesProps {
  readonly bot: Bot
}

export function Releases({ bot }: ReleasesProps) {
  const path = `fhir/R4/Bot/${bot.id}`
  const found = useGet<Parameters>(`${path}/$releases`)
  const [compared, setCompared] = useState<string>()
  const move = useSend({
    send: ({ operation, body }: Move) => medplum.post(`${path}/$${operation}`, body),
  })
  const start = useSend({
    send: async (version: string) => ({ version, job: await startDryRun(path, version) }),
  })
  const columns = useColumns({
    bot,
    move: move.mutate,
    compare: setCompared,
    dryRun: start.mutate,
  })
  return (
    <Loaded query={found}>
      {({ parameter = [] }) => (
        <Stack>
          <DataTable
            label={words.label}
            rows={parameter.map(toRelease)}
            rowKey={({ version }) => version}
            columns={columns}
            empty={<Empty title={words.none} hint={words.noneHint} />}
          />
          <Group>
            <Confirm
              label={words.rollback}
              confirm={words.rollback}
              onConfirm={() => move.mutate({ operation: 'rollback', body: {} })}
            >
              {words.rollbackSure}
            </Confirm>
          </Group>
          {compared !== undefined && <Changes path={path} version={compared} />}
          {start.data !== undefined && <DryRun botId={bot.id ?? ''} {...start.data} />}
        </Stack>
      )}
    </Loaded>
  )
}

function startDryRun(path: string, version: string): Promise<string> {
  const init = { method: 'POST', body: JSON.stringify({ version }) }
  return startJob(`${path.replace('fhir/R4/', '')}/$dry-run`, init)
}

interface Move {
  readonly operation: 'promote' | 'rollback'
  readonly body: Readonly<Record<string, unknown>>
}

interface ColumnsOf extends ReleasesProps {
  readonly move: (move: Move) => void
  readonly compare: (version: string) => void
  readonly dryRun: (version: string) => void
}

function useColumns({ bot, move, compare, dryRun }: ColumnsOf): readonly Column<Release>[] {
  const figures = useVersionFigures(bot)
  const mayRun = isAdmin(useMe())
  const promote = (body: Move['body']) => move({ operation: 'promote', body })
  return [
    { name: words.version, cell: ({ version }) => version },
    { name: words.deployed, cell: ({ deployed }) => <When at={deployed} /> },
    { name: words.by, cell: ({ by }) => by },
    { name: words.labels, cell: ({ labels }) => <Labels labels={labels} /> },
    { name: words.runs, align: 'right', cell: (release) => figures(release)?.started },
    { name: words.failed, align: 'right', cell: (release) => failed(figures(release)) },
    { name: words.time, align: 'right', cell: (release) => meanTime(figures(release)) },
    {
      name: words.share,
      cell: ({ labels }) =>
        labels
          .filter(({ name }) => name !== LIVE)
          .map((label) => <Share key={label.name} label={label} promote={promote} />),
    },
    {
      name: words.actions,
      cell: ({ version, labels }) => {
        if (labels.some(({ name }) => name === LIVE)) return null
        return (
          <Group gap="xs" wrap="nowrap">
            <Confirm
              label={words.makeLive}
              confirm={words.makeLive}
              onConfirm={() => promote({ from: version })}
            >
              {fill(words.makeLiveSure, { version })}
            </Confirm>
            <Button size="xs" variant="default" onClick={() => compare(version)}>
              {words.compare}
            </Button>
            {mayRun && (
              <Button size="xs" variant="default" onClick={() => dryRun(version)}>
                {words.dryRun}
              </Button>
            )}
          </Group>
        )
      },
    },
  ]
}

/** Only administrators see figures. */
function useVersionFigures(bot: Bot) {
  const me = useMe()
  const path = `admin/projects/${me.project.id}/bots/stats`
  const { data } = useGet<ProjectFigures>(path, { enabled: isAdmin(me), every: 5000 })
  const found = data?.bots.find(({ bot: { reference } }) => reference === `Bot/${bot.id}`)
  // A version without a name has its code as the key.
  return ({ version, code = '' }: Release) => found?.versions[version] ?? found?.versions[code]
}

function failed(figures: Outcomes | undefined): number | undefined {
  return figures && failures(figures)
}

function meanTime(figures: Outcomes | undefined): string | undefined {
  if (figures === undefined || figures.runTime.count === 0) return undefined
  return milliseconds(figures.runTime.sumMs / figures.runTime.count)
}

function Labels({ labels }: { readonly labels: readonly Label[] }) {
  return (
    <Group gap="xs">
      {labels.map(({ name }) => (
        <Dot key={name} color={name === LIVE ? 'green' : 'gray'}>
          {name}
        </Dot>
      ))}
    </Group>
  )
}

interface ShareProps {
  readonly label: Label
  readonly promote: (body: Move['body']) => void
}

function Share({ label: { name, share }, promote }: ShareProps) {
  const shares = SHARES.includes(share) ? SHARES : [...SHARES, share].sort((a, b) => a - b)
  return (
    <NativeSelect
      size="xs"
      aria-label={fill(words.shareOf, { label: name })}
      value={String(share)}
      onChange={({ currentTarget: { value } }) => promote({ from: name, share: Number(value) })}
      data={shares.map((one) => ({
        value: String(one),
        label: fill(words.percent, { share: one }),
      }))}
    />
  )
}

function Changes({ path, version }: { readonly path: string; readonly version: string }) {
  const query = new URLSearchParams({ to: version })
  const found = useGet<Parameters>(`${path}/$diff?${query}`)
  return (
    <Loaded query={found}>
      {({ parameter = [] }) => (
        <Stack gap="xs">
          <Title>{fill(words.difference, { version })}</Title>
          <Code block tabIndex={0}>
            {parameter.find(({ name }) => name === 'diff')?.valueString ?? words.same}
          </Code>
        </Stack>
      )}
    </Loaded>
  )
}

function toRelease({ part = [] }: ParametersParameter): Release {
  const at = (name: string) => part.find((one) => one.name === name)
  return {
    version: at('version')?.valueString ?? '',
    deployed: at('deployed')?.valueInstant,
    by: at('by')?.valueReference?.reference,
    code: at('code')?.valueReference?.reference,
    // A share follows its label.
    labels: part.flatMap(({ name, valueString = '' }, place) => {
      const next = part[place + 1]
      const share = next?.name === 'share' ? (next.valueInteger ?? 0) : 0
      return name === 'label' ? [{ name: valueString, share }] : []
    }),
  }
}
