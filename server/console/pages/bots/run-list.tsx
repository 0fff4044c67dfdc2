/** Runs of one bot or of all, by outcome and time. The selection is the search of the address. */
import { Group, SegmentedControl } from '@mantine/core'
import type { Parameters } from '@medplum/fhirtypes'
import { useState } from 'react'
import { useLocation, useSearch } from 'wouter'
import { useGet } from '../../client/api.ts'
import { BotSelect } from '../../parts/bots.tsx'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Older } from '../../parts/older.tsx'
import { RunOutcome } from '../../parts/outcome.tsx'
import { Page } from '../../parts/page.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import { TimeInput, toInstant } from '../../parts/time-input.tsx'
import { When } from '../../parts/when.tsx'
import { texts } from '../../texts/texts.ts'
import { milliseconds, parseRuns, type Run } from './runs.ts'

const words = texts.bots.runs
const OUTCOMES = ['all', 'ok', 'failed'] as const
const TIMES = ['since', 'until'] as const
const EVERY_MS = 3000

interface Props {
  /** All bots if undefined. */
  readonly botId: string | undefined
  /** More fields to select by, in front of the others. */
  readonly children?: React.ReactNode
}

export function RunList({ botId, children }: Props) {
  const { selection, select } = useSelection()
  const query = new URLSearchParams({ _count: '50', ...selection })
  query.delete('bot')
  const path = `fhir/R4/Bot/${botId === undefined ? '' : `${botId}/`}$runs?${query}`
  const runs = useGet<Parameters>(path, { every: selection._cursor ? false : EVERY_MS })
  return (
    <>
      <Group align="end" gap="sm" mb="sm">
        {children}
        <SegmentedControl
          aria-label={words.outcome}
          value={selection.status ?? 'all'}
          onChange={(value) => select({ status: value === 'all' ? undefined : value })}
          data={OUTCOMES.map((value) => ({ value, label: words[value] }))}
        />
        {TIMES.map((name) => (
          <Time
            key={name}
            label={words[name]}
            value={selection[name]}
            // Each digit of a year is a time.
            set={(time) => select({ [name]: time }, { replace: true })}
          />
        ))}
      </Group>
      <Loaded query={runs}>
        {(data) => (
          <>
            <DataTable
              label={words.title}
              rows={parseRuns(data)}
              columns={botId === undefined ? [started, bot, ...others] : [started, ...others]}
              rowKey={({ id, attempt }) => `${id}-${attempt}`}
              linkOf={(run) => `/bots/${botId ?? run.bot?.id}/runs/${run.id}`}
              empty={<Empty title={words.none} hint={words.noneHint} />}
            />
            <Older list={data} label={words.older} select={select} />
          </>
        )}
      </Loaded>
    </>
  )
}

export function AllRuns() {
  const { selection, select } = useSelection()
  return (
    <Page title={words.title} hint={words.hint}>
      <RunList key={selection.bot} botId={selection.bot}>
        <BotSelect
          label={words.bot}
          placeholder={words.allBots}
          value={selection.bot ?? null}
          onChange={(bot) => select({ bot: bot ?? undefined })}
          clearable
        />
      </RunList>
    </Page>
  )
}

type Selection = Readonly<Record<string, string | undefined>>

/** `select` begins again with the latest run. */
function useSelection() {
  const search = useSearch()
  const [place, go] = useLocation()
  const selection = Object.fromEntries(new URLSearchParams(search))
  const select = (change: Selection, options?: { readonly replace: boolean }) => {
    const { _cursor, ...kept } = selection
    const values = Object.entries({ ...kept, ...change }).filter(([, value]) => value)
    const query = new URLSearchParams(values as [string, string][])
    go(query.size === 0 ? place : `${place}?${query}`, options)
  }
  return { selection, select }
}

interface TimeProps {
  readonly label: string
  /** An instant. */
  readonly value: string | undefined
  readonly set: (value: string | undefined) => void
}

const MINUTE_MS = 60_000

/** A time in the reader's zone. It shows the address, which links change too. */
function Time({ label, value, set }: TimeProps) {
  const [typed, setTyped] = useState('')
  return (
    <TimeInput
      type="datetime-local"
      label={label}
      value={value === fromLocal(typed) ? typed : toLocal(value)}
      onChange={({ currentTarget: { value: next } }) => {
        setTyped(next)
        set(fromLocal(next))
      }}
    />
  )
}

/** Returns undefined for an empty or invalid time. */
function fromLocal(local: string): string | undefined {
  return Number.isNaN(Date.parse(local)) ? undefined : toInstant(local)
}

/** Returns '' for an invalid time. */
function toLocal(instant = ''): string {
  const at = new Date(instant)
  if (Number.isNaN(at.getTime())) return ''
  const local = new Date(at.getTime() - at.getTimezoneOffset() * MINUTE_MS)
  return local.toISOString().slice(0, 16)
}

const started: Column<Run> = {
  name: words.started,
  cell: ({ started: at }) => <When at={at} />,
}
const bot: Column<Run> = { name: words.bot, cell: (run) => run.bot?.name ?? run.bot?.id }
const others: readonly Column<Run>[] = [
  { name: words.outcome, cell: ({ status }) => <RunOutcome status={status} /> },
  { name: words.mode, cell: ({ mode }) => words.modes[mode as keyof typeof words.modes] ?? mode },
  { name: words.time, align: 'right', cell: ({ durationMs }) => milliseconds(durationMs) },
  { name: words.cpu, align: 'right', cell: ({ cpuMs }) => milliseconds(cpuMs) },
  { name: words.version, align: 'right', cell: ({ version }) => version },
  { name: words.error, cell: ({ error }) => error?.slice(0, 120) },
]
