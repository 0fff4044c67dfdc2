/** Finds a record by name, for a reference. */
import { Group, Select, Text } from '@mantine/core'
import { useDebouncedValue } from '@mantine/hooks'
import type { Bundle, Reference, Resource } from '@medplum/fhirtypes'
import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { problemLines } from '../../client/problem.tsx'
import { medplum } from '../../client/session.ts'
import { recordDetail, recordTitle } from '../../client/titles.ts'
import { type TypeEntry, useTypes } from '../../client/types.ts'
import { texts } from '../../texts/texts.ts'

const words = texts.record
const PAUSE_MS = 200
const MOST = 10
const COMMON = ['Patient', 'Practitioner', 'Organization']

interface Props {
  /** Types that may be picked; empty for any. */
  readonly targets: readonly string[]
  readonly onPick: (reference: Reference) => void
}

export function RecordPicker({ targets, onPick }: Props) {
  const types = useTypes()
  const known = types.data?.map(({ type = '' }) => type) ?? []
  const allowed = targets.length > 0 ? targets : [...COMMON, ...known]
  const choices = [...new Set([...COMMON.filter((type) => allowed.includes(type)), ...allowed])]
  const [type = '', setType] = useState(choices[0])
  const [text, setText] = useState('')
  const [asked] = useDebouncedValue(text.trim(), PAUSE_MS)
  const entry = types.data?.find((one) => one.type === type)
  const found = useQuery({
    queryKey: ['pick', type, asked],
    queryFn: () => findByName(type, asked, entry),
    enabled: entry !== undefined,
    // The list stays until the next one is there.
    placeholderData: keepPreviousData,
  })
  const { options = [], isMore = false } = found.data ?? {}
  // Until the new results arrive, the list has those of an older text.
  const isOld = asked !== text.trim() || found.isPlaceholderData
  const data = options.map(({ reference = '', display = '' }) => ({
    value: reference,
    label: display,
    disabled: isOld,
  }))
  return (
    <Group gap="xs" wrap="nowrap" align="flex-end">
      {choices.length > 1 && (
        <Select
          aria-label={words.findType}
          data={choices}
          value={type}
          searchable
          allowDeselect={false}
          w={180}
          onChange={(next) => next && setType(next)}
        />
      )}
      <Select
        aria-label={words.find}
        placeholder={words.findHint}
        style={{ flex: 1 }}
        data={isMore ? [...data, { value: '', label: words.findMore, disabled: true }] : data}
        renderOption={({ option: { value, label } }) => (
          <div>
            <Text size="sm">{label}</Text>
            <Text size="xs" c="dimmed">
              {options.find(({ reference }) => reference === value)?.detail}
            </Text>
          </div>
        )}
        // The service has searched.
        filter={({ options }) => options}
        // The options may still be those of the text before.
        selectFirstOptionOnChange={false}
        searchable
        value={null}
        searchValue={text}
        onSearchChange={setText}
        error={found.error && problemLines(found.error)[0]?.text}
        nothingFoundMessage={found.isFetched && !found.error ? words.findNothing : undefined}
        onChange={(chosen) => {
          const picked = options.find(({ reference }) => reference === chosen)
          if (picked) onPick({ reference: picked.reference, display: picked.display })
        }}
      />
    </Group>
  )
}

/** In order; the first that a type has is searched. */
const NAMING = ['name', 'title', 'code:text', 'identifier']

interface Found {
  readonly options: readonly Option[]
  readonly isMore: boolean
}

interface Option {
  readonly reference: string
  readonly display: string
  readonly detail: string
}

async function findByName(
  type: string,
  text: string,
  entry: TypeEntry | undefined,
): Promise<Found> {
  const known = new Set(entry?.searchParam?.map(({ name }) => name))
  const parameter = NAMING.find((name) => known.has(name.replace(/:.*/, ''))) ?? '_id'
  const query = new URLSearchParams({ _count: String(MOST), _sort: '-_lastUpdated' })
  if (text !== '') query.set(parameter, text)
  const { entry: entries = [], link = [] } = await medplum.get<Bundle>(`fhir/R4/${type}?${query}`)
  const options = entries.flatMap(({ resource }) => (resource ? [toOption(resource)] : []))
  return { options, isMore: link.some(({ relation }) => relation === 'next') }
}

function toOption(record: Resource): Option {
  const { resourceType, id } = record
  return {
    reference: `${resourceType}/${id}`,
    display: recordTitle(record),
    detail: recordDetail(record),
  }
}
