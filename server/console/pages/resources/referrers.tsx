/** Records that refer to this one, by the reference parameters of every type. */
import { Anchor, Group, Stack, Text } from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { Link } from 'wouter'
import { searchBatch } from '../../client/api.ts'
import { type Me, mayDo, useMe } from '../../client/session.ts'
import { type TypeEntry, useTypes } from '../../client/types.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { DataTable } from '../../parts/table.tsx'
import { fill, texts } from '../../texts/texts.ts'

const words = texts.record

const AT_ONCE = 100

interface Props {
  readonly type: string
  readonly id: string
}

interface Found {
  readonly type: string
  readonly parameter: string
  readonly total: number
}

interface Referrer {
  readonly type: string
  readonly found: readonly Found[]
}

export function Referrers({ type, id }: Props) {
  const me = useMe()
  const types = useTypes()
  const found = useQuery({
    queryKey: ['referrers', type, id],
    queryFn: () =>
      searchReferrers(listReverseSearches(types.data ?? [], type, me), `${type}/${id}`),
    enabled: types.data !== undefined,
  })
  return (
    <Loaded query={found}>
      {(rows) => (
        <Stack>
          <Text size="sm">{words.referrersHint}</Text>
          <DataTable
            label={words.tabs.referrers}
            rows={rows}
            rowKey={(row) => row.type}
            columns={[
              { name: words.type, cell: (row) => row.type },
              {
                name: words.parameter,
                cell: ({ found }) => (
                  <Group gap="sm">
                    {found.map(({ type: own, parameter, total }) => (
                      <Anchor
                        key={parameter}
                        component={Link}
                        href={`/resources/${own}?${parameter}=${type}/${id}`}
                      >
                        {fill(words.byParameter, { parameter, total })}
                      </Anchor>
                    ))}
                  </Group>
                ),
              },
            ]}
            empty={<Text>{words.noReferrers}</Text>}
          />
        </Stack>
      )}
    </Loaded>
  )
}

type Search = Pick<Found, 'type' | 'parameter'>

function listReverseSearches(
  types: readonly TypeEntry[],
  target: string,
  me: Me,
): readonly Search[] {
  const includes = types.find(({ type }) => type === target)?.searchRevInclude ?? []
  return includes.flatMap((text) => {
    const [type = '', parameter = ''] = text.split(':')
    return parameter !== '' && mayDo(me, type) ? [{ type, parameter }] : []
  })
}

async function searchReferrers(
  searches: readonly Search[],
  reference: string,
): Promise<readonly Referrer[]> {
  const found: Found[] = []
  for (let start = 0; start < searches.length; start += AT_ONCE) {
    const part = searches.slice(start, start + AT_ONCE)
    const urls = part.map(
      ({ type, parameter }) => `${type}?${parameter}=${reference}&_summary=count`,
    )
    for (const [place, { resource }] of (await searchBatch(urls)).entries()) {
      const search = part[place]
      const total = resource?.resourceType === 'Bundle' ? (resource.total ?? 0) : 0
      if (search && total > 0) found.push({ ...search, total })
    }
  }
  return [...Map.groupBy(found, ({ type }) => type)].map(([type, own]) => ({ type, found: own }))
}
