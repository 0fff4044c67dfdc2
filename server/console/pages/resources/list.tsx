/** Records of a type: search, sorting, paging and download. The URL holds the search. */
import { Box, Button, Checkbox, Group, Menu, Select, Stack, TagsInput, Text } from '@mantine/core'
import { useDisclosure, useLocalStorage } from '@mantine/hooks'
import type { Bundle, Resource } from '@medplum/fhirtypes'
import { lazy, Suspense, useState } from 'react'
import { Link, useLocation, useParams, useSearch } from 'wouter'
import { useGet, useSend } from '../../client/api.ts'
import { keepsDigits } from '../../client/exact.ts'
import { mayDo, medplum, type ReadOptions, useMe } from '../../client/session.ts'
import { readElement, recordTitle } from '../../client/titles.ts'
import { type TypeEntry, useTypes } from '../../client/types.ts'
import { Empty, Loaded, Waiting } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { download, saveBlob, saveText } from '../../parts/save.ts'
import { type Column, DataTable, type Selection } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { Conditions, SearchBar } from './search-bar.tsx'
import { RecordName, usualColumns, Value } from './values.tsx'
import { SavedViews } from './views.tsx'

const words = texts.resources
const BulkActions = lazy(async () => ({
  default: (await import('./bulk-actions.tsx')).BulkActions,
}))
const Plan = lazy(async () => ({ default: (await import('./plan.tsx')).Plan }))

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
  const [isNarrowing, narrowing] = useDisclosure()
  const onPhone = isNarrowing ? {} : { visibleFrom: 'sm' }
  const query = new URLSearchParams(search)
  const found = useGet<Bundle>(`fhir/R4/${type}?${withCount(query)}`, { isExact: keepsDigits })
  const go = (next: URLSearchParams) => navigate(`/resources/${type}?${next}`)
  const create = mayDo(me, type, 'create') && (
    <Button component={Link} href={`/resources/${type}/new`}>
      {words.create}
    </Button>
  )
  return (
    <Page title={type} actions={create}>
      <Group align="flex-end">
        <Select
          label={words.type}
          value={type}
          data={types.map((one) => one.type ?? '')}
          searchable
          allowDeselect={false}
          nothingFoundMessage={words.noType}
          selectFirstOptionOnChange
          onFocus={({ currentTarget }) => currentTarget.select()}
          onChange={(next) => next && navigate(`/resources/${next}`)}
        />
        <Button
          variant="default"
          hiddenFrom="sm"
          aria-expanded={isNarrowing}
          onClick={narrowing.toggle}
        >
          {words.narrow}
        </Button>
        <Group align="flex-end" {...onPhone}>
          <TagsInput label={words.columns} value={columns} onChange={choose} maw="100%" />
          <SavedViews
            type={type}
            search={search}
            columns={columns}
            open={(view) => {
              choose([...view.columns])
              navigate(`/resources/${type}?${view.search}`)
            }}
          />
        </Group>
      </Group>
      <Box {...onPhone}>
        <SearchBar query={query} parameters={entry?.searchParam ?? []} go={go} />
      </Box>
      <Conditions query={query} go={go} />
      <Loaded query={found}>
        {(bundle) => (
          <Found {...{ type, entry, columns, query, bundle, go }} create={create || undefined} />
        )}
      </Loaded>
      <Group>
        <Save type={type} query={query} columns={[...namingElement(entry), ...columns]} />
        <Checkbox
          label={words.plan}
          checked={isPlanned}
          onChange={({ currentTarget }) => setPlanned(currentTarget.checked)}
        />
      </Group>
      {isPlanned && (
        <Suspense fallback={<Waiting />}>
          <Plan type={type} query={withCount(query)} />
        </Suspense>
      )}
    </Page>
  )
}

function withCount(query: URLSearchParams): URLSearchParams {
  const own = new URLSearchParams(query)
  if (!own.has('_count')) own.set('_count', '20')
  if (!own.has('_sort') && !own.has('_cursor')) own.set('_sort', '-_lastUpdated')
  if (!own.has('_total')) own.set('_total', 'estimate')
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
  const selection = useSelection(rows)
  return (
    <Stack gap="sm">
      {selection.rows.length > 0 && (
        <Suspense>
          <BulkActions type={type} selection={selection} />
        </Suspense>
      )}
      <DataTable
        label={type}
        rows={rows}
        columns={buildColumns(columns, entry)}
        rowKey={(record) => `${record.resourceType}/${record.id}`}
        selection={selection}
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
        <Total bundle={bundle} shown={rows.length} query={query} change={change} />
      </Group>
    </Stack>
  )
}

interface TotalProps {
  readonly bundle: Bundle
  readonly shown: number
  readonly query: URLSearchParams
  readonly change: (name: string, value: string) => void
}

/** The estimate of the planner, which is cheap, until a count is asked for; a list of one page is counted. */
function Total({ bundle: { total, link = [] }, shown, query, change }: TotalProps) {
  const isWhole = !query.has('_cursor') && !link.some(({ relation }) => relation === 'next')
  if (isWhole) return <Text size="sm">{fill(words.total, { total: shown })}</Text>
  const isExact = query.get('_total') === 'accurate'
  return (
    <>
      {total !== undefined && (
        <Text size="sm">
          {fill(isExact ? words.total : words.estimate, { total: total.toLocaleString() })}
        </Text>
      )}
      {!isExact && (
        <Button variant="subtle" onClick={() => change('_total', 'accurate')}>
          {words.count}
        </Button>
      )}
    </>
  )
}

/** Elements that name a record, and the parameters of these names. */
const NAMING = ['name', 'title', 'code']
/** Search parameters of elements that are named otherwise. */
const SORTS: Readonly<Record<string, string>> = {
  'effective[x]': 'date',
  'performed[x]': 'date',
  'occurrence[x]': 'date',
  'onset[x]': 'onset-date',
  'value[x]': 'value-quantity',
  period: 'date',
  recorded: 'date',
  clinicalStatus: 'clinical-status',
  recordedDate: 'recorded-date',
}

function namingElement(entry: TypeEntry | undefined): readonly string[] {
  const names = new Set(entry?.searchParam?.map(({ name }) => name))
  return NAMING.filter((name) => names.has(name)).slice(0, 1)
}

/** Columns of elements with a search parameter are sortable. */
function buildColumns(
  names: readonly string[],
  entry: TypeEntry | undefined,
): readonly Column<Resource>[] {
  const parameters = new Set(entry?.searchParam?.map(({ name }) => name))
  const sortParameter = (...names: readonly (string | undefined)[]) =>
    names.find((candidate) => candidate !== undefined && parameters.has(candidate))
  return [
    {
      name: words.record,
      cell: (record) => <RecordName record={record} />,
      sort: sortParameter(...NAMING),
    },
    ...names.map((name) => ({
      name,
      sort: sortParameter(name, name.toLowerCase(), SORTS[name]),
      cell: (record: Resource) => <Value value={readElement(record, name)} />,
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
      for (const name of OF_A_PAGE) own.delete(name)
      if (form === 'ndjson') return saveLines(type, own)
      own.set('_fields', ['id', ...columns.map((name) => name.replace('[x]', ''))].join(','))
      return saveTable(type, own)
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

const PAGE = 1000
const MOST_PAGES = 20
const MOST = PAGE * MOST_PAGES
/** Parameters of the shown page, and not of the whole result. */
const OF_A_PAGE = ['_cursor', '_offset', '_count', '_total']

/** Errors: more rows than the limit, and those of the service. */
async function saveTable(type: string, query: URLSearchParams): Promise<void> {
  // One more than the limit, as the service cuts a table without a word.
  query.set('_count', String(MOST + 1))
  const table = await download(`fhir/R4/${type}/$csv?${query}`)
  if (countRows(await table.text()) > MOST) throw tooMany()
  saveBlob(table, `${type}.csv`)
}

/** Counts the lines below the head; a line break in quotes is part of a cell. */
function countRows(table: string): number {
  const outside = table.split('"').filter((_, place) => place % 2 === 0)
  return outside.reduce((count, text) => count + text.split('\r\n').length - 1, -1)
}

function tooMany(): Error {
  return new Error(fill(words.tooMany, { most: MOST }))
}

/** Errors: more lines than the limit, and those of the service. */
async function saveLines(type: string, query: URLSearchParams): Promise<void> {
  const lines: string[] = []
  query.set('_count', String(PAGE))
  let next: string | undefined = `fhir/R4/${type}?${query}`
  for (let page = 0; next !== undefined; page++) {
    if (page === MOST_PAGES) throw tooMany()
    const options: ReadOptions = { cache: 'no-store', isExact: true }
    const bundle: Bundle = await medplum.get(next, options)
    for (const { resource } of bundle.entry ?? []) lines.push(JSON.stringify(resource))
    next = bundle.link?.find(({ relation }) => relation === 'next')?.url
  }
  saveText(lines.map((line) => `${line}\n`).join(''), `${type}.ndjson`, 'application/fhir+ndjson')
}

/** Rows that are no longer listed are no longer selected. */
function useSelection(listed: readonly Resource[]): Selection<Resource> {
  const [ids, setIds] = useState<ReadonlySet<string>>(new Set())
  const rows = listed.filter(({ id = '' }) => ids.has(id))
  return {
    rows,
    has: ({ id = '' }) => ids.has(id),
    set: (next) => setIds(new Set(next.map(({ id = '' }) => id))),
    label: recordTitle,
  }
}
