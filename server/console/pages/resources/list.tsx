/** Records of a type: search, sorting, paging and download. The URL holds the search. */
import {
  Autocomplete,
  Box,
  Button,
  Checkbox,
  Code,
  Group,
  Menu,
  Pill,
  Progress,
  ScrollArea,
  Select,
  Spoiler,
  Stack,
  TagsInput,
  Text,
  TextInput,
} from '@mantine/core'
import { useForm } from '@mantine/form'
import { useLocalStorage } from '@mantine/hooks'
import type {
  Bundle,
  CapabilityStatementRestResourceSearchParam,
  OperationOutcome,
  Resource,
} from '@medplum/fhirtypes'
import { useState } from 'react'
import { Link, useLocation, useParams, useSearch } from 'wouter'
import { useGet, useSend } from '../../client/api.ts'
import { mayDo, medplum, useMe } from '../../client/session.ts'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { saveFrom, saveText } from '../../parts/save.ts'
import { type Column, DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { readElement, type TypeEntry, useTypes, usualColumns, Value } from './values.tsx'

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
        columns={buildColumns(columns, entry)}
        rowKey={(record) => `${record.resourceType}/${record.id}`}
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

/** Columns named like a search parameter are sortable. */
function buildColumns(
  names: readonly string[],
  entry: TypeEntry | undefined,
): readonly Column<Resource>[] {
  const parameters = new Set(entry?.searchParam?.map(({ name }) => name))
  const sortParameter = (name: string) =>
    [name, name.toLowerCase()].find((candidate) => parameters.has(candidate))
  return [
    { name: words.id, cell: ({ id }) => id?.slice(-12) },
    ...names.map((name) => ({
      name,
      sort: sortParameter(name),
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

const PAGE = 1000
const MOST_PAGES = 20

/** Errors: more lines than the limit, and those of the service. */
async function saveLines(type: string, query: URLSearchParams): Promise<void> {
  const lines: string[] = []
  query.set('_count', String(PAGE))
  let next: string | undefined = `fhir/R4/${type}?${query}`
  for (let page = 0; next !== undefined; page++) {
    if (page === MOST_PAGES) throw new Error(fill(texts.resources.tooMany, { most: PAGE * page }))
    const bundle: Bundle = await medplum.get(next, { cache: 'no-store' })
    for (const { resource } of bundle.entry ?? []) lines.push(JSON.stringify(resource))
    next = bundle.link?.find(({ relation }) => relation === 'next')?.url
  }
  saveText(lines.map((line) => `${line}\n`).join(''), `${type}.ndjson`, 'application/fhir+ndjson')
}

const searchWords = texts.resources.search
const HIDDEN = ['_cursor', '_sort', '_count', '_total']

interface SearchProps {
  readonly query: URLSearchParams
  readonly parameters: readonly CapabilityStatementRestResourceSearchParam[]
  readonly go: (query: URLSearchParams) => void
}

/** Search conditions, removable, with the type's parameters as suggestions. */
function SearchBar({ query, parameters, go }: SearchProps) {
  const form = useForm({
    initialValues: { name: '', value: '' },
    validate: {
      name: (name) => (name ? null : searchWords.nameMissing),
      value: (value) => (value.trim() === '' ? searchWords.valueMissing : null),
    },
  })
  const shown = [...query].filter(([name]) => !HIDDEN.includes(name))
  const chosen = parameters.find(({ name }) => name === form.values.name)
  const add = form.onSubmit(({ name, value }) => {
    const next = new URLSearchParams(query)
    next.delete('_cursor')
    next.append(name, value.trim())
    form.reset()
    go(next)
  })
  const remove = (name: string, value: string) => {
    const next = new URLSearchParams(query)
    next.delete('_cursor')
    next.delete(name, value)
    go(next)
  }
  return (
    <form onSubmit={add}>
      <Group align="flex-start">
        <Select
          aria-label={searchWords.parameter}
          placeholder={searchWords.parameter}
          data={parameters.map(({ name }) => name ?? '')}
          searchable
          clearable
          {...form.getInputProps('name')}
        />
        <TextInput
          aria-label={searchWords.value}
          placeholder={searchWords[inputHint(chosen?.type)]}
          {...form.getInputProps('value')}
        />
        <Button type="submit">{searchWords.add}</Button>
      </Group>
      {shown.length > 0 && (
        <Group gap="xs" mt="xs">
          {shown.map(([name, value]) => (
            <Pill
              key={`${name}=${value}`}
              size="md"
              withRemoveButton
              onRemove={() => remove(name, value)}
              removeButtonProps={{
                'aria-label': searchWords.remove,
                'aria-hidden': false,
                tabIndex: 0,
              }}
            >
              {name}={value}
            </Pill>
          ))}
        </Group>
      )}
    </form>
  )
}

function inputHint(type: string | undefined): 'value' | 'date' | 'token' | 'reference' {
  return type === 'date' || type === 'token' || type === 'reference' ? type : 'value'
}

interface PlanProps {
  readonly type: string
  readonly query: URLSearchParams
}

/** PostgreSQL's query plan as a tree, with a bar for each step's share of the time. */
function Plan({ type, query }: PlanProps) {
  const explained = useGet<Bundle<OperationOutcome>>(`fhir/R4/${type}?${query}&_explain=true`)
  return (
    <Loaded query={explained}>
      {({ entry = [] }) =>
        entry
          .flatMap(({ resource }) => resource?.issue ?? [])
          .map(({ details, diagnostics = '' }) => (
            <Steps key={diagnostics} title={details?.text ?? ''} text={diagnostics} />
          ))
      }
    </Loaded>
  )
}

interface StepsProps {
  readonly title: string
  readonly text: string
}

function Steps({ title, text }: StepsProps) {
  const steps = parsePlanSteps(text)
  const most = Math.max(...steps.map(({ ms }) => ms), 0.001)
  return (
    <Stack gap={4}>
      <Text fw={600}>{title}</Text>
      <ScrollArea tabIndex={0} aria-label={words.plan}>
        {steps.map(({ line, depth, name, ms, rows }) => (
          <Group key={line} wrap="nowrap" gap="sm">
            <Box w={120}>
              <Progress value={(100 * ms) / most} aria-label={`${ms} ms`} />
            </Box>
            <Text size="xs" w={150} ta="right">
              {fill(words.step, { ms, rows })}
            </Text>
            <Text size="sm" pl={depth * 12} style={{ whiteSpace: 'nowrap' }}>
              {name}
            </Text>
          </Group>
        ))}
      </ScrollArea>
      <Spoiler maxHeight={0} showLabel={words.planText} hideLabel={words.planHide}>
        <Code block>{text}</Code>
      </Spoiler>
    </Stack>
  )
}

interface Step {
  readonly line: number
  readonly depth: number
  readonly name: string
  readonly ms: number
  readonly rows: number
}

function parsePlanSteps(text: string): readonly Step[] {
  const lines = text.split('\n').flatMap((step, line) => {
    const [, space = '', name, last, rows, loops] =
      /^( *)(?:->\s+)?(\S.*?)\s+\(cost=.*?\(actual time=[\d.]+\.\.([\d.]+) rows=([\d.]+) loops=(\d+)\)/.exec(
        step,
      ) ?? []
    if (name === undefined) return []
    const times = Number(loops)
    const ms = Math.round(Number(last) * times * 1000) / 1000
    return [{ line, depth: space.length / 6, name, ms, rows: Math.round(Number(rows) * times) }]
  })
  return lines
}
