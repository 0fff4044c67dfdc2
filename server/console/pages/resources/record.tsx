/** One record: as a form, as JSON, with its history, with what refers to it, and a Patient's events in order. */
import { Button, Group, Timeline as Line, Stack, Text } from '@mantine/core'
import { useDebouncedValue } from '@mantine/hooks'
import type { Bundle, OperationOutcome, Resource } from '@medplum/fhirtypes'
import { useInfiniteQuery, useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { Link, useLocation, useParams } from 'wouter'
import { useGet, useSend } from '../../api.ts'
import { type Draft, useDraft } from '../../drafts.ts'
import { Editor, jsonText } from '../../parts/editor.tsx'
import { Restored } from '../../parts/form.tsx'
import { Loaded, NotYours, Waiting } from '../../parts/loaded.tsx'
import { Page, Views } from '../../parts/page.tsx'
import { Problem } from '../../parts/problem.tsx'
import { When } from '../../parts/when.tsx'
import { mayDo, medplum, useMe } from '../../session.ts'
import { fill, texts } from '../../texts/texts.ts'
import { Fields } from './fields.tsx'
import { History } from './history.tsx'
import { Referrers } from './referrers.tsx'
import { elementOf, Value } from './values.tsx'

const words = texts.record
const TABS = ['form', 'json', 'history', 'referrers', 'timeline'] as const

export function RecordPage() {
  const { type, id, tab: asked } = useParams<{ type: string; id: string; tab?: string }>()
  const tab = TABS.find((name) => name === asked) ?? 'form'
  const record = useGet<Resource>(`fhir/R4/${type}/${id}`, { enabled: tab !== 'history' })
  const place = { type, id, tab }
  if (tab === 'history') {
    return (
      <Frame {...place}>
        <History type={type} id={id} />
      </Frame>
    )
  }
  return (
    <Frame {...place}>
      <Loaded query={record}>
        {(saved) => <Record key={saved.meta?.versionId} {...place} saved={saved} />}
      </Loaded>
    </Frame>
  )
}

interface Place {
  readonly type: string
  readonly id: string
  readonly tab: (typeof TABS)[number]
}

interface FrameProps extends Place {
  readonly children: React.ReactNode
}

function Frame({ type, id, tab, children }: FrameProps) {
  const all = type === 'Patient' ? TABS : TABS.filter((name) => name !== 'timeline')
  return (
    <Page title={fill(words.title, { type })} hint={id} actions={<Delete type={type} id={id} />}>
      <Views names={all} labels={words.tabs} open={tab} address={`/resources/${type}/${id}`}>
        {children}
      </Views>
    </Page>
  )
}

interface RecordProps extends Place {
  readonly saved: Resource
}

/** Form and JSON are two views of one draft. */
function Record({ type, id, tab, saved }: RecordProps) {
  const me = useMe()
  const key = `record/${type}/${id}`
  const draft = useDraft(key, saved)
  const save = useSend<Resource, Resource>({
    send: (changed) =>
      medplum.put(`fhir/R4/${type}/${id}`, changed, undefined, {
        // A change that somebody else has saved meanwhile is not overwritten.
        headers: { 'If-Match': `W/"${saved.meta?.versionId}"` },
      }),
    done: texts.common.saved,
    draft: key,
    notify: false,
  })
  const editing: Editing = {
    draft,
    save: mayDo(me, type, 'update') ? save.mutate : undefined,
    isBusy: save.isPending,
    error: save.error,
  }
  if (tab === 'referrers') return <Referrers type={type} id={id} />
  if (tab === 'timeline') return <Timeline id={id} />
  return (
    <>
      <Restored draft={draft} />
      {tab === 'json' ? <RecordJson {...editing} /> : <RecordForm {...editing} />}
    </>
  )
}

export function NewRecord() {
  const me = useMe()
  const { type } = useParams<{ type: string }>()
  const [, navigate] = useLocation()
  const key = `record/${type}/new`
  // The type comes from the address; the service refuses one that it does not know.
  const draft = useDraft(key, { resourceType: type } as Resource)
  const create = useSend<Resource, Resource>({
    send: (record) => medplum.post(`fhir/R4/${type}`, record),
    done: texts.common.saved,
    draft: key,
    after: ({ id }) => navigate(`/resources/${type}/${id}`),
    notify: false,
  })
  const { mutate, isPending, error } = create
  if (!mayDo(me, type, 'create')) return <NotYours />
  return (
    <Page title={fill(words.new, { type })}>
      <Restored draft={draft} />
      <RecordForm draft={draft} save={mutate} isBusy={isPending} error={error} />
    </Page>
  )
}

function Delete({ type, id }: Pick<Place, 'type' | 'id'>) {
  const me = useMe()
  const [, navigate] = useLocation()
  const remove = useSend({
    send: () => medplum.delete(`fhir/R4/${type}/${id}`),
    done: words.deleted,
    after: () => navigate(`/resources/${type}/${id}/history`),
  })
  if (!mayDo(me, type, 'delete')) return null
  return (
    <Button
      variant="default"
      loading={remove.isPending}
      onClick={() => confirm(words.deleteSure) && remove.mutate()}
    >
      {texts.common.delete}
    </Button>
  )
}

/** A record as a form that its StructureDefinition makes. */
function RecordForm({ draft, save, isBusy, error }: Editing) {
  const { resourceType } = draft.value
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        save?.(draft.value)
      }}
    >
      <Stack maw={720}>
        <fieldset disabled={save === undefined} style={{ border: 0, padding: 0, margin: 0 }}>
          <Fields
            type={resourceType}
            path={resourceType}
            value={{ ...draft.value }}
            // The fields keep the type and the id.
            onChange={(value) => draft.set(value as unknown as typeof draft.value)}
          />
        </fieldset>
        <Problem error={error} title={texts.record.refused} />
        {save && (
          <Button type="submit" id="save" loading={isBusy} w="fit-content">
            {texts.common.save}
          </Button>
        )}
      </Stack>
    </form>
  )
}

const PAUSE_MS = 600

/** A record as JSON, judged by the service while it is typed. */
function RecordJson({ draft, save, isBusy, error }: Editing) {
  const [text, setText] = useState(() => JSON.stringify(draft.value, null, 2))
  const parsed = parse(text)
  const type = (text: string) => {
    setText(text)
    const record = parse(text)
    if (record !== undefined) draft.set(record)
  }
  return (
    <Stack>
      <Editor
        label={words.tabs.json}
        extensions={jsonText}
        height="30rem"
        value={text}
        {...(save ? { onChange: type } : {})}
      />
      {parsed === undefined ? (
        <Text c="red">{words.noJson}</Text>
      ) : (
        draft.isDirty && <Judged record={parsed} />
      )}
      <Problem error={error} title={words.refused} />
      {save && (
        <Group>
          <Button
            id="save"
            disabled={parsed === undefined}
            loading={isBusy}
            onClick={() => parsed && save(parsed)}
          >
            {texts.common.save}
          </Button>
        </Group>
      )}
    </Stack>
  )
}

interface JudgedProps {
  readonly record: Resource
}

function Judged({ record }: JudgedProps) {
  const [judged] = useDebouncedValue(record, PAUSE_MS)
  const { data, error } = useQuery<OperationOutcome>({
    queryKey: ['validate', JSON.stringify(judged)],
    queryFn: () => medplum.post(`fhir/R4/${judged.resourceType}/$validate`, judged),
  })
  const faults = data?.issue?.filter(({ severity }) => severity !== 'information') ?? []
  if (error) return <Problem error={error} title={words.notValid} />
  if (faults.length === 0) return data ? <Text c="dimmed">{words.valid}</Text> : null
  return (
    <Stack gap={4} role="status">
      {faults.map(({ details, expression, severity }) => (
        <Text key={`${details?.text}${expression}`} size="sm">
          {severity}: {details?.text} {expression?.join(', ')}
        </Text>
      ))}
    </Stack>
  )
}

function parse(text: string): Resource | undefined {
  try {
    const value: unknown = JSON.parse(text)
    const isRecord = typeof value === 'object' && value !== null && 'resourceType' in value
    return isRecord ? (value as Resource) : undefined
  } catch {
    return undefined
  }
}

interface TimelineProps {
  readonly id: string
}

/** The events of a patient, newest first. */
function Timeline({ id }: TimelineProps) {
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
    .map((record) => ({ record, at: timeOf(record) }))
    .filter(({ at }) => at !== undefined)
    .sort((a, b) => ((a.at ?? '') < (b.at ?? '') ? 1 : -1))
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
              <Value value={elementOf(record, 'code') ?? elementOf(record, 'type')} />{' '}
              <Value value={elementOf(record, 'value[x]')} />
            </Text>
            <Text size="xs" c="dimmed" component="div">
              <When at={at} />
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

const TIMES = ['effective[x]', 'performed[x]', 'onset[x]', 'occurrence[x]', 'period']
const DATES = ['authoredOn', 'issued', 'recordedDate', 'date', 'created', 'birthDate']

/** When it happened, by the elements that say so in most types. */
function timeOf(record: Resource): string | undefined {
  for (const name of [...TIMES, ...DATES]) {
    const value = elementOf(record, name)
    if (typeof value === 'string') return value
    if (typeof value === 'object' && value !== null && 'start' in value) return String(value.start)
  }
  return undefined
}

interface Editing {
  readonly draft: Draft<Resource>
  /** Absent where the person may read alone. */
  readonly save: ((record: Resource) => void) | undefined
  readonly isBusy: boolean
  readonly error: unknown
}
