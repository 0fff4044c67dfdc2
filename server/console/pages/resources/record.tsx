/** One record: as a form, as JSON, with its history, with what refers to it, and a Patient's events in order. */
import { Button } from '@mantine/core'
import type { Resource } from '@medplum/fhirtypes'
import { useLocation, useParams } from 'wouter'
import { useGet, useSend } from '../../api.ts'
import { useDraft } from '../../drafts.ts'
import { NotYours } from '../../parts/empty.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { Restored } from '../../parts/restored.tsx'
import { Views } from '../../parts/tabs.tsx'
import { mayDo, medplum, useMe } from '../../session.ts'
import { fill, texts } from '../../texts/texts.ts'
import type { Editing } from './editing.ts'
import { RecordForm } from './form.tsx'
import { History } from './history.tsx'
import { RecordJson } from './json.tsx'
import { Referrers } from './referrers.tsx'
import { Timeline } from './timeline.tsx'

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
