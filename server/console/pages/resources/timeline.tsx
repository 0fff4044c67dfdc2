/** A patient's events as a timeline. */
import { Timeline as Line, Stack, Text } from '@mantine/core'
import type { BundleEntry, Resource } from '@medplum/fhirtypes'
import { Link } from 'wouter'
import { usePages } from '../../client/api.ts'
import { readElement } from '../../client/titles.ts'
import { Pages } from '../../parts/loaded.tsx'
import { RecordName, Value } from './values.tsx'

export function Timeline({ id }: { readonly id: string }) {
  const found = usePages(`fhir/R4/Patient/${id}/$everything?_count=200`)
  return (
    <Stack>
      <Pages query={found}>
        {(entries) => (
          <Line bulletSize={12}>
            {listEvents(entries).map(({ record, at }) => (
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
        )}
      </Pages>
    </Stack>
  )
}

/** Returns the records with a time, the newest first. */
function listEvents(entries: readonly BundleEntry[]) {
  return entries
    .flatMap(({ resource }) => (resource ? [{ record: resource, at: eventTime(resource) }] : []))
    .filter(({ at }) => at !== undefined)
    .sort((a, b) => instant(b.at) - instant(a.at))
}

/** The later of two texts may be the earlier time, in another zone. */
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
