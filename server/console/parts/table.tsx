/** The shared table. */
import { Table, UnstyledButton } from '@mantine/core'
import { Link } from 'wouter'

export interface Column<T> {
  readonly name: string
  readonly cell: (row: T) => React.ReactNode
  readonly align?: 'left' | 'right'
  readonly sort?: string | undefined
}

interface Props<T> {
  readonly label: string
  readonly rows: readonly T[]
  readonly columns: readonly Column<T>[]
  readonly rowKey: (row: T) => string
  readonly linkOf?: ((row: T) => string) | undefined
  readonly sorted?: string | undefined
  readonly onSort?: (sort: string) => void
  readonly empty?: React.ReactNode
}

export function DataTable<T>(props: Props<T>) {
  const { label, rows, columns, rowKey, linkOf, empty } = props
  if (rows.length === 0 && empty) return <>{empty}</>
  return (
    <Table.ScrollContainer minWidth={columns.length * 110} type="native" tabIndex={0}>
      <Table highlightOnHover verticalSpacing="xs" aria-label={label}>
        <Table.Thead>
          <Table.Tr>
            {columns.map((column) => (
              <Head key={column.name} column={column} {...props} />
            ))}
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {rows.map((row) => (
            <Table.Tr key={rowKey(row)}>
              {columns.map(({ name, cell, align = 'left' }, place) => (
                <Table.Td key={name} ta={align} className={align}>
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

interface HeadProps<T> extends Pick<Props<T>, 'sorted' | 'onSort'> {
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
