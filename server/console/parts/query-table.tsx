/** Tables of the answer to a query. */
import type { BundleEntry, Resource } from '@medplum/fhirtypes'
import { usePages } from '../client/api.ts'
import { Loaded, Pages, type Query } from './loaded.tsx'
import { DataTable, type TableProps } from './table.tsx'

interface QueryTableProps<D, T> extends Omit<TableProps<T>, 'rows'> {
  readonly query: Query<D>
  readonly rows: (data: D) => readonly T[]
}

/** A table of the answer to a query. */
export function QueryTable<D, T>({ query, rows, ...table }: QueryTableProps<D, T>) {
  return <Loaded query={query}>{(data) => <DataTable {...table} rows={rows(data)} />}</Loaded>
}

interface PagedTableProps<R, T> extends Omit<TableProps<T>, 'rows'> {
  readonly path: string
  readonly every?: number
  readonly rows: (record: R) => readonly T[]
}

/** A table of the records of a Bundle, page by page. */
export function PagedTable<R extends Resource, T>(props: PagedTableProps<R, T>) {
  const { path, every = false, rows, ...table } = props
  const found = usePages<R>(path, { every })
  const read = (entries: readonly BundleEntry<R>[]) =>
    entries.flatMap(({ resource }) => (resource ? rows(resource) : []))
  return <Pages query={found}>{(entries) => <DataTable {...table} rows={read(entries)} />}</Pages>
}

interface RecordTableProps<T> extends Omit<PagedTableProps<T, T>, 'path' | 'rows' | 'rowKey'> {
  /** Below `fhir/R4/`. */
  readonly search: string
}

/** A table of the records that a search finds. */
export function RecordTable<T extends Resource>({ search, ...table }: RecordTableProps<T>) {
  return (
    <PagedTable<T, T>
      {...table}
      path={`fhir/R4/${search}`}
      rows={(record) => [record]}
      rowKey={({ id }) => id ?? ''}
    />
  )
}
