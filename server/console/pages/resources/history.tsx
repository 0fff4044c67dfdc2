/** The versions of a record; any two side by side; any of them brought back. */

import { json } from '@codemirror/lang-json'
import { MergeView } from '@codemirror/merge'
import { EditorView } from '@codemirror/view'
import { Button, Group, Select, Stack, Text } from '@mantine/core'
import type { Bundle, BundleEntry, Resource } from '@medplum/fhirtypes'
import { useEffect, useRef, useState } from 'react'
import { useLocation } from 'wouter'
import { useGet, useSend } from '../../api.ts'
import { useLooks } from '../../parts/editor.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { mayDo, medplum, useMe } from '../../session.ts'
import { fill, texts } from '../../texts/texts.ts'

const words = texts.history

interface Props {
  readonly type: string
  readonly id: string
}

export function History({ type, id }: Props) {
  const history = useGet<Bundle>(`fhir/R4/${type}/${id}/_history?_count=100`)
  return (
    <Loaded query={history}>
      {({ entry = [] }) => <Versions type={type} id={id} entries={entry} />}
    </Loaded>
  )
}

interface VersionsProps extends Props {
  readonly entries: readonly BundleEntry[]
}

function Versions({ type, id, entries }: VersionsProps) {
  const versions = entries.map(versionOf)
  const names = versions.map(({ version }) => version)
  const [left, setLeft] = useState(names[1] ?? names[0] ?? null)
  const [right, setRight] = useState(names[0] ?? null)
  const textOf = (name: string | null) => {
    const record = versions.find(({ version }) => version === name)?.record
    return record === undefined ? '' : JSON.stringify(record, null, 2)
  }
  return (
    <Stack>
      <DataTable
        label={words.title}
        rows={versions}
        keyOf={({ version }) => version}
        columns={[
          { name: words.version, cell: ({ version }) => version },
          { name: words.when, cell: ({ at }) => <When at={at} /> },
          { name: words.what, cell: ({ what }) => what },
          { name: words.author, cell: ({ author }) => author },
          {
            name: words.restore,
            cell: (row) => <Restore type={type} id={id} {...row} isLast={row === versions[0]} />,
          },
        ]}
      />
      {versions.length < 2 ? (
        <Text c="dimmed">{words.only}</Text>
      ) : (
        <>
          <Group>
            <Select label={words.left} data={names} value={left} onChange={setLeft} />
            <Select label={words.right} data={names} value={right} onChange={setRight} />
          </Group>
          <Difference before={textOf(left)} after={textOf(right)} />
        </>
      )}
    </Stack>
  )
}

interface Version {
  readonly version: string
  readonly at: string | undefined
  readonly what: string
  readonly author: string | undefined
  readonly record: Resource | undefined
}

function versionOf({ resource, request, response }: BundleEntry): Version {
  const version = resource?.meta?.versionId ?? /W\/"(.*)"/.exec(response?.etag ?? '')?.[1] ?? '?'
  const author = resource?.meta?.author
  return {
    version,
    at: resource?.meta?.lastUpdated ?? response?.lastModified,
    what: request?.method ?? '',
    author: author?.display ?? author?.reference,
    record: resource,
  }
}

interface RestoreProps extends Props, Version {
  readonly isLast: boolean
}

/** A version that is brought back becomes the newest one; nothing of the history is lost. */
function Restore({ type, id, version, record, isLast }: RestoreProps) {
  const me = useMe()
  const [, navigate] = useLocation()
  const restore = useSend<Resource>({
    send: ({ meta: _, ...content }) => medplum.put(`fhir/R4/${type}/${id}`, content),
    done: words.restored,
    after: () => navigate(`/resources/${type}/${id}`),
  })
  if (record === undefined || isLast || !mayDo(me, type, 'update')) return null
  return (
    <Button
      size="compact-sm"
      variant="default"
      loading={restore.isPending}
      onClick={() => restore.mutate(record)}
    >
      {fill(words.restoreThis, { version })}
    </Button>
  )
}

interface DifferenceProps {
  readonly before: string
  readonly after: string
}

function Difference({ before, after }: DifferenceProps) {
  const place = useRef<HTMLDivElement>(null)
  const looks = useLooks(words.title)
  useEffect(() => {
    if (place.current === null) return
    const extensions = [
      looks,
      json(),
      EditorView.editable.of(false),
      EditorView.contentAttributes.of({ tabindex: '0' }),
    ]
    const view = new MergeView({
      a: { doc: before, extensions },
      b: { doc: after, extensions },
      parent: place.current,
      ...(before === after ? {} : { collapseUnchanged: {} }),
    })
    return () => view.destroy()
  }, [before, after, looks])
  return <div ref={place} />
}
