/** A record as form and JSON, with history, references and a Patient's timeline. */
import { Button, Group, Stack, Text } from '@mantine/core'
import { useDebouncedValue } from '@mantine/hooks'
import type { OperationOutcome, Resource } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { useLocation, useParams } from 'wouter'
import { useGet, useSend } from '../../client/api.ts'
import { useDraft } from '../../client/drafts.ts'
import { parseExact } from '../../client/exact.ts'
import { Problem } from '../../client/problem.tsx'
import { mayDo, medplum, useMe } from '../../client/session.ts'
import { useRecordTitle } from '../../client/titles.ts'
import { Editor, jsonText } from '../../parts/editor.tsx'
import { Restored } from '../../parts/form.tsx'
import { Loaded, NotYours } from '../../parts/loaded.tsx'
import { Page, Views } from '../../parts/page.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { pruned } from './editing.ts'
import { Fields } from './fields.tsx'
import { HiddenParts } from './hidden.tsx'
import { History } from './history.tsx'
import { Referrers } from './referrers.tsx'
import { BehindRecord, type Sent, useSaving } from './saving.tsx'
import { Summary } from './summary.tsx'
import { starterElements } from './templates.ts'
import { Timeline } from './timeline.tsx'

const words = texts.record
const TABS = ['summary', 'form', 'json', 'history', 'referrers', 'timeline'] as const

export function RecordPage() {
  const { type, id, tab: asked } = useParams<{ type: string; id: string; tab?: string }>()
  const tab = TABS.find((name) => name === asked) ?? 'summary'
  const record = useGet<Resource>(`fhir/R4/${type}/${id}`, {
    enabled: tab !== 'history',
    isExact: true,
  })
  const place = { type, id, tab }
  if (tab === 'history') {
    return (
      <Frame {...place} record={undefined}>
        <History type={type} id={id} />
      </Frame>
    )
  }
  return (
    <Frame {...place} record={record.data}>
      <Loaded query={record}>{(saved) => <Record {...place} saved={saved} />}</Loaded>
    </Frame>
  )
}

interface Place {
  readonly type: string
  readonly id: string
  readonly tab: (typeof TABS)[number]
}

interface FrameProps extends Place {
  /** Absent while it is loaded, and for a deleted record with its history. */
  readonly record: Resource | undefined
  readonly children: React.ReactNode
}

function Frame({ type, id, tab, record, children }: FrameProps) {
  // The type comes from the URL; a record that is not loaded is named by it.
  const title = useRecordTitle(record ?? ({ resourceType: type } as Resource))
  const all = type === 'Patient' ? TABS : TABS.filter((name) => name !== 'timeline')
  return (
    <Page
      title={title}
      hint={`${type}/${id}`}
      trail={[{ label: type, href: `/resources/${type}` }]}
      actions={<Delete type={type} id={id} />}
    >
      <Views names={all} labels={words.tabs} open={tab} address={`/resources/${type}/${id}`}>
        {children}
      </Views>
    </Page>
  )
}

interface RecordProps extends Place {
  readonly saved: Resource
}

/** A record being edited; `base` is the version before editing. */
interface Edit {
  readonly base: Resource
  readonly value: Resource
  /** JSON that is not a record yet. */
  readonly unfinished?: string
}

/** Form and JSON are views of one draft, unaffected by newer versions of the record. */
function Record({ type, id, tab, saved }: RecordProps) {
  const me = useMe()
  const key = `edit/${type}/${id}`
  const draft = useDraft<Edit>(key, { base: saved, value: saved })
  const { base, value, unfinished } = draft.value
  const isFinished = unfinished === undefined
  const saving = useSaving({
    type,
    id,
    base,
    draft: key,
    // The person may have left, come back and typed while the save ran.
    after: (saved) => draft.settle((typed) => ({ ...typed, base: saved })),
  })
  const isOld = draft.isDirty && saved.meta?.versionId !== base.meta?.versionId
  const isBehind = isOld && isFinished && !saving.isBusy
  const editing: Editing = {
    // Another version, or the saved one after an edit, gets new inputs.
    round: `${base.meta?.versionId} ${draft.round}`,
    value,
    isDirty: draft.isDirty,
    set: (value) => draft.set({ base, value }),
    save: mayDo(me, type, 'update') ? saving.save : undefined,
    isBusy: saving.isBusy,
    error: isBehind ? undefined : saving.error,
  }
  if (tab === 'referrers') return <Referrers type={type} id={id} />
  if (tab === 'timeline') return <Timeline id={id} />
  if (tab === 'summary' && !draft.isDirty) return <Summary record={saved} />
  return (
    <Stack>
      <Restored draft={draft} />
      {isBehind && (
        <BehindRecord
          versions={{ base, mine: value, newest: saved }}
          merge={(edit) => {
            saving.reset()
            draft.set(edit)
          }}
          discard={() => {
            saving.reset()
            draft.discard()
          }}
        />
      )}
      {tab === 'json' ? (
        <RecordJson
          key={editing.round}
          {...editing}
          unfinished={unfinished}
          keep={(unfinished) => draft.set({ base, value, unfinished })}
        />
      ) : (
        <>
          {!isFinished && <Text c="red">{words.finishJson}</Text>}
          <RecordForm {...editing} save={isFinished ? editing.save : undefined} />
        </>
      )}
      {saving.question}
    </Stack>
  )
}

export function NewRecord() {
  const me = useMe()
  const { type } = useParams<{ type: string }>()
  const [, navigate] = useLocation()
  const key = `edit/${type}/new`
  // The type comes from the URL; the service rejects unknown ones.
  const draft = useDraft(key, { resourceType: type } as Resource)
  const create = useSend<Sent, Resource>({
    send: ({ body }) => medplum.post(`fhir/R4/${type}`, body),
    done: texts.common.saved,
    draft: key,
    after: ({ id }) => navigate(`/resources/${type}/${id}`),
    notify: false,
  })
  const { mutate, isPending, error } = create
  if (!mayDo(me, type, 'create')) return <NotYours />
  return (
    <Page title={fill(words.new, { type })} trail={[{ label: type, href: `/resources/${type}` }]}>
      <Restored draft={draft} />
      <RecordForm
        opened={starterElements(type)}
        round={String(draft.round)}
        value={draft.value}
        isDirty={draft.isDirty}
        set={draft.set}
        save={mutate}
        isBusy={isPending}
        error={error}
      />
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

function RecordForm(props: Editing) {
  const { round, value, isDirty, opened, set, save, isBusy, error } = props
  const { resourceType } = value
  return (
    <form
      noValidate
      onSubmit={(event) => {
        event.preventDefault()
        const record = pruned(value)
        save?.({ record, body: record })
      }}
    >
      <Stack maw={720}>
        <HiddenParts record={value} />
        <fieldset
          disabled={save === undefined}
          inert={isBusy}
          style={{ border: 0, padding: 0, margin: 0 }}
        >
          <Fields
            key={round}
            type={resourceType}
            path={resourceType}
            opened={opened}
            value={{ ...value }}
            onChange={(next) => set(next as unknown as Resource)}
          />
        </fieldset>
        <Problem error={error} title={words.refused} />
        {save && (
          <Button
            type="submit"
            id="save"
            loading={isBusy}
            disabled={opened !== undefined && !isDirty}
            w="fit-content"
          >
            {texts.common.save}
          </Button>
        )}
      </Stack>
    </form>
  )
}

const PAUSE_MS = 600

interface JsonEditing extends Editing {
  readonly unfinished: string | undefined
  readonly keep: (unfinished: string) => void
}

function RecordJson(props: JsonEditing) {
  const { value, unfinished, isDirty, set, keep, save, isBusy, error } = props
  const [text, setText] = useState(() => unfinished ?? JSON.stringify(pruned(value), null, 2))
  const parsed = parse(text)
  const type = (text: string) => {
    setText(text)
    const record = parse(text)
    if (record === undefined) keep(text)
    else set(record)
  }
  return (
    <Stack>
      <Editor
        label={words.tabs.json}
        extensions={jsonText}
        height="30rem"
        value={text}
        {...(save && !isBusy ? { onChange: type } : {})}
      />
      {parsed === undefined ? (
        <Text c="red">{words.noJson}</Text>
      ) : (
        isDirty && <Judged record={parsed} />
      )}
      <Problem error={error} title={words.refused} />
      {save && (
        <Group>
          <Button
            id="save"
            disabled={parsed === undefined}
            loading={isBusy}
            // Sends the raw text, so that the service rejects duplicate names.
            onClick={() => parsed && save({ record: parsed, body: text })}
          >
            {texts.common.save}
          </Button>
        </Group>
      )}
    </Stack>
  )
}

function Judged({ record }: { readonly record: Resource }) {
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
    const value: unknown = parseExact(text)
    const isRecord = typeof value === 'object' && value !== null && 'resourceType' in value
    return isRecord ? (value as Resource) : undefined
  } catch {
    return undefined
  }
}

interface Editing {
  /** Elements of a new record that are shown before they have a value. */
  readonly opened?: readonly string[]
  readonly round: string
  readonly value: Resource
  readonly isDirty: boolean
  readonly set: (value: Resource) => void
  /** Absent for read-only access. */
  readonly save: ((sent: Sent) => void) | undefined
  readonly isBusy: boolean
  readonly error: unknown
}
