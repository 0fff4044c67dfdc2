/** The dead letters of the project: the largest groups, and the letters of a filter, which is the search of the address. */
import { Button, Group, SegmentedControl, TextInput } from '@mantine/core'
import type { Parameters } from '@medplum/fhirtypes'
import { Link, useLocation, useSearch } from 'wouter'
import { useGet } from '../../client/api.ts'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Older } from '../../parts/older.tsx'
import { Page, Section } from '../../parts/page.tsx'
import { QueryTable } from '../../parts/query-table.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import words from '../../texts/dead-letters.json' with { type: 'json' }
import {
  type Filter,
  type Letter,
  LetterActions,
  type LetterGroup,
  parseGroups,
  parseLetters,
} from './actions.tsx'

const PLACE = '/dead-letters'
const EVERY_MS = 5000
const KINDS = ['all', 'delivery', 'schedule', 'run'] as const
const SHOWN_ERROR = 120

export function DeadLetters() {
  const [, go] = useLocation()
  const { _cursor, ...filter }: Filter = Object.fromEntries(new URLSearchParams(useSearch()))
  const select = (change: Filter) => go(formatAddress({ ...filter, ...change }), { replace: true })
  const query = new URLSearchParams(filter)
  const groups = useGet<Parameters>(`fhir/R4/Bot/$dead-letters?groups=10&${query}`, {
    every: EVERY_MS,
  })
  if (_cursor !== undefined) query.set('_cursor', _cursor)
  const letters = useGet<Parameters>(`fhir/R4/Bot/$dead-letters?_count=50&${query}`, {
    every: _cursor === undefined ? EVERY_MS : false,
  })
  return (
    <Page title={words.title} hint={words.hint} actions={<LetterActions filter={filter} />}>
      <Fields filter={filter} select={select} />
      <Section title={words.groups}>
        <QueryTable
          query={groups}
          label={words.groups}
          rows={parseGroups}
          columns={groupColumns}
          rowKey={({ kind, target, error }) => `${kind} ${target} ${error}`}
          linkOf={({ kind, target, error }) => formatAddress({ kind, target, error: error ?? '' })}
          empty={<Empty title={words.none} hint={words.noneHint} />}
        />
      </Section>
      <Section title={words.letters}>
        <Loaded query={letters}>
          {(data) => (
            <>
              <DataTable
                label={words.letters}
                rows={parseLetters(data)}
                columns={letterColumns}
                rowKey={({ id }) => id}
                linkOf={({ id }) => `${PLACE}/${id}`}
                empty={<Empty title={words.none} hint={words.noneHint} />}
              />
              <Older list={data} label={words.older} select={select} />
            </>
          )}
        </Loaded>
      </Section>
    </Page>
  )
}

function formatAddress(filter: Filter): string {
  const given = Object.entries(filter).filter(([, value]) => value !== '')
  return given.length === 0 ? PLACE : `${PLACE}?${new URLSearchParams(given)}`
}

interface FieldsProps {
  readonly filter: Filter
  readonly select: (change: Filter) => void
}

function Fields({ filter, select }: FieldsProps) {
  const text = (name: 'target' | 'error') => ({
    name,
    label: words[name],
    value: filter[name] ?? '',
    onChange: ({ currentTarget: { value } }: { currentTarget: { value: string } }) =>
      select({ [name]: value }),
  })
  return (
    <Group align="end" gap="sm">
      <SegmentedControl
        aria-label={words.kind}
        value={filter.kind ?? 'all'}
        onChange={(kind) => select({ kind: kind === 'all' ? '' : kind })}
        data={KINDS.map((value) => ({ value, label: words.kinds[value] }))}
      />
      <TextInput {...text('target')} placeholder={words.targetHint} w={320} />
      <TextInput {...text('error')} placeholder={words.errorHint} w={320} />
      {Object.keys(filter).length > 0 && (
        <Button component={Link} href={PLACE} variant="default">
          {words.clear}
        </Button>
      )}
    </Group>
  )
}

export function kindText(kind: string): string {
  return words.kinds[kind as keyof typeof words.kinds] ?? kind
}

const groupColumns: readonly Column<LetterGroup>[] = [
  { name: words.target, cell: ({ target }) => target },
  { name: words.kind, cell: ({ kind }) => kindText(kind) },
  { name: words.error, cell: ({ error }) => error?.slice(0, SHOWN_ERROR) },
  { name: words.count, align: 'right', cell: ({ count }) => count },
  { name: words.last, cell: ({ last }) => <When at={last} /> },
]

const letterColumns: readonly Column<Letter>[] = [
  { name: words.failed, cell: ({ failed }) => <When at={failed} /> },
  { name: words.kind, cell: ({ kind }) => kindText(kind) },
  { name: words.target, cell: ({ target }) => target },
  { name: words.focus, cell: ({ focus }) => focus },
  { name: words.attempts, align: 'right', cell: ({ attempts }) => attempts },
  { name: words.error, cell: ({ error }) => error?.slice(0, SHOWN_ERROR) },
  { name: words.replayAt, cell: ({ replayAt }) => replayAt && <When at={replayAt} /> },
]
