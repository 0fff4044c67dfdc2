/** A patient's events as a timeline. */
import { Button, Timeline as Line, Text } from '@mantine/core'
import type { Bundle, Resource } from '@medplum/fhirtypes'
import { useInfiniteQuery } from '@tanstack/react-query'
import { Link } from 'wouter'
import { Problem } from '../../client/problem.tsx'
import { medplum } from '../../client/session.ts'
import { readElement } from '../../client/titles.ts'
import { Waiting } from '../../parts/loaded.tsx'
import { texts } from '../../texts/texts.ts'
import { RecordName, Value } from './values.tsx'

export function Timeline({ id }: { readonly id: string }) {
  const pages = useInfiniteQuery({
    queryKey: ['everything', id],
    queryFn: ({ pageParam }) => medplum.get<Bundle>(pageParam, { cache: 'no-store' }),
    initialPageParam: `fhir/R4/Patient/${id}/$everything?_count=200`,
    getNextPageParam: ({ link }) => link?.find(({ relation }) => relation === 'next')?.url,
  })
  if (pages.error) return <Problem error={pages.error} retry={() => void pages.refetch()} />
  if (pages.data === undefined) return <Waiting />
  const events = pages.data.pages
    .flatMap(({ entry = [] }) => entry.flatMap(({ resource }) => (resource ? [resource] : [])))
    .map((record) => ({ record, at: eventTime(record) }))
    .filter(({ at }) => at !== undefined)
    .sort((a, b) => instant(b.at) - instant(a.at))
  return (
    <>
      <Line bulletSize={12}>
        {events.map(({ record, at }) => (
          <Line.Item
            key={`${record.resourceType}/${record.id}`}
            title={
              <Link href={`/resources/${record.resourceType}/${record.id}`}>
                {record.resourceType}
              </Link>
            }
          >
            <Text size="sm">
              <RecordName record={record} /> <Value value={readElement(record, 'value[x]')} />
            </Text>
            <Text size="xs" c="dimmed" component="div">
              <Value value={at} />
            </Text>
          </Line.Item>
        ))}
      </Line>
      {pages.hasNextPage && (
        <Button variant="default" mt="md" onClick={() => void pages.fetchNextPage()}>
          {texts.common.more}
        </Button>
      )}
    </>
  )
}

/** Of two zones, the later text may be the earlier time. */
function instant(at = ''): number {
  return Date.parse(at) || 0
}

const TIMES = ['effective[x]', 'performed[x]', 'onset[x]', 'occurrence[x]', 'period']
const DATES = ['authoredOn', 'issued', 'recordedDate', 'date', 'created', 'birthDate']

function eventTime(record: Resource): string | undefined {
  for (const name of [...TIMES, ...DATES]) {
    const value = readElement(record, name)
    if (typeof value === 'string') return value
    if (typeof value === 'object' && value !== null && 'start' in value) return String(value.start)
  }
  return undefined
}
