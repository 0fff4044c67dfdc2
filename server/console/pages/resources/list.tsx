/** Records of a type: searched, sorted, read page by page, saved as a table. The search stands in the address. */
import { Autocomplete, Button, Checkbox, Group, Menu, Stack, TagsInput, Text } from '@mantine/core'
import { useLocalStorage } from '@mantine/hooks'
import type { Bundle, Resource } from '@medplum/fhirtypes'
import { useState } from 'react'
import { Link, useLocation, useParams, useSearch } from 'wouter'
import { useGet, useSend } from '../../api.ts'
import { Empty } from '../../parts/empty.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { saveFrom } from '../../parts/save.ts'
import { type Column, DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { mayDo, useMe } from '../../session.ts'
import { fill, texts } from '../../texts/texts.ts'
import { saveLines } from './ndjson.ts'
import { Plan } from './plan.tsx'
import { SearchBar } from './search-bar.tsx'
import { elementOf, type TypeEntry, useTypes, usualColumns } from './types.ts'
import { Value } from './values.tsx'

const words = texts.resources

export function Resources() {
  const { type = 'Patient' } = useParams<{ type?: string }>()
  const types = useTypes()
  return (
    <Loaded query={types}>
      {(known) => (
        <List key={type} type={type} types={known} entry={known.find((one) => one.type === type)} />
      )}
    </Loaded>
  )
}

interface ListProps {
  readonly type: string
  readonly types: readonly TypeEntry[]
  readonly entry: TypeEntry | undefined
}

function List({ type, types, entry }: ListProps) {
  const me = useMe()
  const search = useSearch()
  const [, navigate] = useLocation()
  const [chosen, choose] = useLocalStorage<string[]>({ key: `botica-columns-${type}` })
  const columns = chosen ?? [...usualColumns(type)]
  const [isPlanned, setPlanned] = useState(false)
  const query = new URLSearchParams(search)
  const found = useGet<Bundle>(`fhir/R4/${type}?${withCount(query)}`)
  const go = (next: URLSearchParams) => navigate(`/resources/${type}?${next}`)
  const create = mayDo(me, type, 'create') && (
    <Button component={Link} href={`/resources/${type}/new`}>
      {words.create}
    </Button>
  )
  return (
    <Page title={type} actions={create}>
      <Group align="flex-end">
        <Autocomplete
          label={words.type}
          defaultValue={type}
          data={types.map((one) => one.type ?? '')}
          limit={30}
          onOptionSubmit={(next) => navigate(`/resources/${next}`)}
        />
        <TagsInput label={words.columns} value={columns} onChange={choose} maw="100%" />
      </Group>
      <SearchBar query={query} parameters={entry?.searchParam ?? []} go={go} />
      <Loaded query={found}>
        {(bundle) => (
          <Found {...{ type, entry, columns, query, bundle, go }} create={create || undefined} />
        )}
      </Loaded>
      <Group>
        <Save type={type} query={query} columns={columns} />
        <Checkbox
          label={words.plan}
          checked={isPlanned}
          onChange={({ currentTarget }) => setPlanned(currentTarget.checked)}
        />
      </Group>
      {isPlanned && <Plan type={type} query={withCount(query)} />}
    </Page>
  )
}

function withCount(query: URLSearchParams): URLSearchParams {
  const own = new URLSearchParams(query)
  if (!own.has('_count')) own.set('_count', '20')
  if (!own.has('_sort') && !own.has('_cursor')) own.set('_sort', '-_lastUpdated')
  return own
}

interface FoundProps extends Pick<ListProps, 'type' | 'entry'> {
  readonly columns: readonly string[]
  readonly query: URLSearchParams
  readonly bundle: Bundle
  readonly go: (query: URLSearchParams) => void
  readonly create: React.ReactNode
}

function Found({ type, entry, columns, query, bundle, go, create }: FoundProps) {
  const rows = (bundle.entry ?? []).flatMap(({ resource }) => (resource ? [resource] : []))
  const next = bundle.link?.find(({ relation }) => relation === 'next')?.url
  const change = (name: string, value: string | undefined) => {
    const changed = new URLSearchParams(query)
    changed.delete('_cursor')
    changed.delete(name)
    if (value !== undefined) changed.set(name, value)
    go(changed)
  }
  return (
    <Stack gap="sm">
      <DataTable
        label={type}
        rows={rows}
        columns={columnsOf(columns, entry)}
        keyOf={(record) => `${record.resourceType}/${record.id}`}
        linkOf={(record) => `/resources/${record.resourceType}/${record.id}`}
        sorted={query.get('_sort') ?? '-_lastUpdated'}
        onSort={(sort) => change('_sort', sort)}
        empty={<Empty title={words.none} hint={words.noneHint} action={create} />}
      />
      <Group>
        {query.has('_cursor') && (
          <Button variant="default" onClick={() => history.back()}>
            {words.before}
          </Button>
        )}
        {next && (
          <Button variant="default" onClick={() => go(new URL(next).searchParams)}>
            {words.next}
          </Button>
        )}
        {bundle.total === undefined ? (
          <Button variant="subtle" onClick={() => change('_total', 'accurate')}>
            {words.count}
          </Button>
        ) : (
          <Text size="sm">{fill(words.total, { total: bundle.total })}</Text>
        )}
      </Group>
    </Stack>
  )
}

/** A column that a search parameter has the name of can be sorted by. */
function columnsOf(
  names: readonly string[],
  entry: TypeEntry | undefined,
): readonly Column<Resource>[] {
  const parameters = new Set(entry?.searchParam?.map(({ name }) => name))
  const sortOf = (name: string) =>
    [name, name.toLowerCase()].find((candidate) => parameters.has(candidate))
  return [
    { name: words.id, cell: ({ id }) => id?.slice(-12) },
    ...names.map((name) => ({
      name,
      sort: sortOf(name),
      cell: (record: Resource) => <Value value={elementOf(record, name)} />,
    })),
    {
      name: words.updated,
      sort: '_lastUpdated',
      cell: ({ meta }) => <When at={meta?.lastUpdated} />,
    },
  ]
}

interface SaveProps {
  readonly type: string
  readonly query: URLSearchParams
  readonly columns: readonly string[]
}

function Save({ type, query, columns }: SaveProps) {
  const save = useSend({
    send: (form: 'csv' | 'ndjson') => {
      const own = new URLSearchParams(query)
      own.delete('_cursor')
      if (form === 'ndjson') return saveLines(type, own)
      own.set('_fields', ['id', ...columns.map((name) => name.replace('[x]', ''))].join(','))
      return saveFrom(`fhir/R4/${type}/$csv?${own}`, `${type}.csv`)
    },
  })
  return (
    <Menu>
      <Menu.Target>
        <Button variant="default" loading={save.isPending}>
          {words.save}
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item onClick={() => save.mutate('csv')}>CSV</Menu.Item>
        <Menu.Item onClick={() => save.mutate('ndjson')}>NDJSON</Menu.Item>
      </Menu.Dropdown>
    </Menu>
  )
}
