/** The search of the dialog that Ctrl-K opens. */
import { NavLink, Stack, Text, TextInput } from '@mantine/core'
import { useDebouncedValue } from '@mantine/hooks'
import type { Resource } from '@medplum/fhirtypes'
import { keepPreviousData, useQuery } from '@tanstack/react-query'
import { type KeyboardEvent, useEffect, useRef, useState } from 'react'
import { useLocation } from 'wouter'
import { searchBatch } from '../client/api.ts'
import { Problem } from '../client/problem.tsx'
import { mayDo, useMe } from '../client/session.ts'
import { recordDetail, recordTitle } from '../client/titles.ts'
import { useTypes } from '../client/types.ts'
import { texts } from '../texts/texts.ts'
import { Hint } from './text.tsx'

const words = texts.finder
const PAUSE_MS = 200
const MOST = 5

export interface Place {
  readonly href: string
  readonly title: string
  readonly kind: string
}

interface SearchProps {
  /** The pages of the menu. */
  readonly pages: readonly Place[]
  readonly close: () => void
}

export function Search({ pages, close }: SearchProps) {
  const me = useMe()
  const [, navigate] = useLocation()
  const input = useRef<HTMLInputElement>(null)
  const [text, setText] = useState('')
  const [active, setActive] = useState(0)
  // The dialog may have looked for a field before this one was loaded.
  useEffect(() => input.current?.focus(), [])
  const [asked] = useDebouncedValue(text.trim(), PAUSE_MS)
  const found = useQuery({
    queryKey: ['find', asked],
    queryFn: () =>
      findRecords(
        SEARCHES.filter(([type]) => mayDo(me, type)),
        asked,
      ),
    enabled: asked.length > 1,
    placeholderData: keepPreviousData,
  })
  const wanted = text.trim().toLowerCase()
  const named = pages.filter(({ title }) => wanted !== '' && title.toLowerCase().includes(wanted))
  const types = useTypes().data?.map(({ type = '' }) => type) ?? []
  const exact = [...addressed(text.trim(), types), ...named]
  const records = asked.length > 1 ? (found.data?.places ?? []) : []
  const places = [...exact, ...records]
  // Until the new results arrive, the list has those of an older text.
  const isOld = asked !== text.trim() || found.isPlaceholderData
  const isDisabled = (place: Place) => isOld && records.includes(place)
  const go = (place: Place) => {
    if (isDisabled(place)) return
    // The page that opens takes the focus.
    input.current?.blur()
    close()
    navigate(place.href)
  }
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
    if (step !== undefined) {
      event.preventDefault()
      setActive((active + step + places.length) % Math.max(places.length, 1))
    }
    const place = places[active]
    if (event.key === 'Enter' && place) go(place)
  }
  return (
    <Stack gap="xs">
      <TextInput
        ref={input}
        data-autofocus
        aria-label={words.title}
        placeholder={words.hint}
        value={text}
        onChange={({ currentTarget }) => {
          setText(currentTarget.value)
          setActive(0)
        }}
        onKeyDown={onKeyDown}
      />
      <div role="status">
        <Places places={places} active={active} isDisabled={isDisabled} go={go} />
        {places.length === 0 && asked.length > 1 && found.isFetched && !found.error && (
          <Hint>{words.nothing}</Hint>
        )}
        <Problem error={found.error} />
        {records.length > 0 && found.data?.isMore && <Hint>{words.more}</Hint>}
      </div>
    </Stack>
  )
}

interface PlacesProps {
  readonly places: readonly Place[]
  /** Position of the place that Enter opens. */
  readonly active: number
  readonly isDisabled: (place: Place) => boolean
  readonly go: (place: Place) => void
}

function Places({ places, active, isDisabled, go }: PlacesProps) {
  return places.map((place, position) => (
    <NavLink
      key={place.href}
      component="button"
      label={place.title}
      rightSection={<Text size="xs">{place.kind}</Text>}
      active={position === active}
      disabled={isDisabled(place)}
      aria-disabled={isDisabled(place)}
      onClick={() => go(place)}
    />
  ))
}

/** `Patient/123` opens the record, `Patient` the list. */
function addressed(text: string, types: readonly string[]): readonly Place[] {
  const [type = '', id] = text.split('/')
  const name = types.find((one) => one.toLowerCase() === type.toLowerCase())
  if (name === undefined) return []
  if (id === undefined) return [{ href: `/resources/${name}`, title: name, kind: words.list }]
  const isId = /^[A-Za-z0-9\-.]{1,64}$/.test(id)
  return isId ? [{ href: `/resources/${name}/${id}`, title: `${name}/${id}`, kind: name }] : []
}

/** Types with the parameters that people search by. */
const SEARCHES: readonly (readonly [type: string, parameters: readonly string[]])[] = [
  ['Patient', ['name', 'identifier']],
  ['Practitioner', ['name', 'identifier']],
  ['Organization', ['name']],
  ['Location', ['name']],
  ['RelatedPerson', ['name']],
  ['Bot', ['name']],
  ['Questionnaire', ['title']],
]

interface Found {
  readonly places: readonly Place[]
  readonly isMore: boolean
}

async function findRecords(
  searches: readonly (readonly [string, readonly string[]])[],
  text: string,
): Promise<Found> {
  const urls = searches.flatMap(([type, parameters]) =>
    parameters.map((name) => `${type}?${new URLSearchParams({ [name]: text, _count: `${MOST}` })}`),
  )
  const found = await searchBatch(urls)
  const bundles = found.flatMap(({ resource }) =>
    resource?.resourceType === 'Bundle' ? [resource] : [],
  )
  const records = bundles.flatMap(({ entry: own = [] }) => own)
  const places = records.flatMap(({ resource }) => (resource ? [toPlace(resource)] : []))
  return {
    places: [...new Map(places.map((place) => [place.href, place])).values()],
    isMore: bundles.some(({ link }) => link?.some(({ relation }) => relation === 'next')),
  }
}

function toPlace(record: Resource): Place {
  const { resourceType, id } = record
  const href = resourceType === 'Bot' ? `/bots/${id}` : `/resources/${resourceType}/${id}`
  const kind = [resourceType, recordDetail(record)].filter((text) => text !== '').join(' · ')
  return { href, title: recordTitle(record), kind }
}
