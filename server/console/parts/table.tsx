/** The shared table. */
import { Checkbox, Table, UnstyledButton } from '@mantine/core'
import { Link } from 'wouter'
import { fill, texts } from '../texts/texts.ts'

export interface Column<T> {
  readonly name: string
  readonly cell: (row: T) => React.ReactNode
  readonly align?: 'left' | 'right'
  readonly sort?: string | undefined
}

export interface Selection<T> {
  readonly rows: readonly T[]
  has(row: T): boolean
  set(rows: readonly T[]): void
  /** The name of a row for screen readers. */
  label(row: T): string
}

export interface TableProps<T> {
  readonly label: string
  readonly rows: readonly T[]
  readonly columns: readonly Column<T>[]
  readonly rowKey: (row: T) => string
  readonly linkOf?: ((row: T) => string) | undefined
  readonly sorted?: string | undefined
  readonly onSort?: (sort: string) => void
  readonly empty?: React.ReactNode
  readonly selection?: Selection<T>
}

export function DataTable<T>(props: TableProps<T>) {
  const { label, rows, columns, rowKey, linkOf, empty, selection } = props
  if (rows.length === 0 && empty) return <>{empty}</>
  return (
    <Table.ScrollContainer
      minWidth={columns.length * 110}
      type="native"
      tabIndex={0}
      classNames={{ scrollContainerInner: 'rows' }}
    >
      <Table highlightOnHover verticalSpacing="xs" aria-label={label}>
        <Table.Thead>
          <Table.Tr>
            {selection && <SelectAll rows={rows} selection={selection} />}
            {columns.map((column) => (
              <Head key={column.name} column={column} {...props} />
            ))}
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {rows.map((row) => (
            <Table.Tr key={rowKey(row)}>
              {selection && <SelectOne row={row} selection={selection} />}
              {columns.map(({ name, cell, align = 'left' }, place) => (
                <Table.Td
                  key={name}
                  className={align}
                  {...(place === 0 ? {} : { 'data-name': name })}
                >
                  {place === 0 && linkOf ? <Link href={linkOf(row)}>{cell(row)}</Link> : cell(row)}
                </Table.Td>
              ))}
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Table.ScrollContainer>
  )
}

interface SelectAllProps<T> {
  readonly rows: readonly T[]
  readonly selection: Selection<T>
}

function SelectAll<T>({ rows, selection }: SelectAllProps<T>) {
  const count = selection.rows.length
  return (
    <Table.Th w={36}>
      <Checkbox
        size="xs"
        aria-label={texts.table.selectAll}
        checked={count > 0 && count === rows.length}
        indeterminate={count > 0 && count < rows.length}
        onChange={() => selection.set(count === rows.length ? [] : rows)}
      />
    </Table.Th>
  )
}

interface SelectOneProps<T> {
  readonly row: T
  readonly selection: Selection<T>
}

function SelectOne<T>({ row, selection }: SelectOneProps<T>) {
  const { rows, has, set, label } = selection
  return (
    <Table.Td>
      <Checkbox
        size="xs"
        aria-label={fill(texts.table.select, { name: label(row) })}
        checked={has(row)}
        onChange={() => set(has(row) ? rows.filter((one) => one !== row) : [...rows, row])}
      />
    </Table.Td>
  )
}

interface HeadProps<T> extends Pick<TableProps<T>, 'sorted' | 'onSort'> {
  readonly column: Column<T>
}

function Head<T>({ column: { name, align = 'left', sort }, sorted, onSort }: HeadProps<T>) {
  if (sort === undefined || onSort === undefined) return <Table.Th ta={align}>{name}</Table.Th>
  const order = sorted === sort ? 'ascending' : sorted === `-${sort}` ? 'descending' : 'none'
  const mark = { ascending: ' ↑', descending: ' ↓', none: '' }[order]
  return (
    <Table.Th ta={align} aria-sort={order}>
      <UnstyledButton
        fz="sm"
        fw={700}
        onClick={() => onSort(order === 'ascending' ? `-${sort}` : sort)}
      >
        {name}
        {mark}
      </UnstyledButton>
    </Table.Th>
  )
}

interface FactsProps {
  readonly label: string
  readonly rows: readonly (readonly [name: string, value: React.ReactNode])[]
}

/** A table of one thing: a row for each of its values. */
export function Facts({ label, rows }: FactsProps) {
  return (
    <Table variant="vertical" layout="fixed" aria-label={label}>
      <Table.Tbody>
        {rows.map(([name, value]) => (
          <Table.Tr key={name}>
            <Table.Th w={200}>{name}</Table.Th>
            <Table.Td style={{ overflowWrap: 'anywhere' }}>{value}</Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  )
}
