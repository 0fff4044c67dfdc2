/** Versions of a record, with comparison and restore. */

import { Group, Select, Stack, Text } from '@mantine/core'
import type { BundleEntry, Resource } from '@medplum/fhirtypes'
import { useState } from 'react'
import { useLocation } from 'wouter'
import { usePages } from '../../client/api.ts'
import { mayDo, medplum, useMe } from '../../client/session.ts'
import { Action } from '../../parts/action.tsx'
import { Difference } from '../../parts/difference.tsx'
import { Pages } from '../../parts/loaded.tsx'
import { DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { restored } from './editing.ts'

const words = texts.history

interface Props {
  readonly type: string
  readonly id: string
}

export function History({ type, id }: Props) {
  const history = usePages(`fhir/R4/${type}/${id}/_history?_count=100`, {
    isExact: true,
  })
  return (
    <Pages query={history}>
      {(entries) => <Versions type={type} id={id} entries={entries} isOld={history.isFetching} />}
    </Pages>
  )
}

interface VersionsProps extends Props {
  readonly entries: readonly BundleEntry[]
  readonly isOld: boolean
}

function Versions({ type, id, entries, isOld }: VersionsProps) {
  const versions = entries.map(parseVersionEntry)
  const names = versions.map(({ version }) => version)
  const [left, setLeft] = useState(names[1] ?? names[0] ?? null)
  const [right, setRight] = useState(names[0] ?? null)
  const formatVersion = (name: string | null) => {
    const record = versions.find(({ version }) => version === name)?.record
    return record === undefined ? '' : JSON.stringify(record, null, 2)
  }
  return (
    <Stack>
      <DataTable
        label={words.title}
        rows={versions}
        rowKey={({ version }) => version}
        columns={[
          { name: words.version, cell: ({ version }) => version },
          { name: words.when, cell: ({ at }) => <When at={at} /> },
          { name: words.what, cell: ({ what }) => what },
          { name: words.author, cell: ({ author }) => author },
          {
            name: words.restore,
            cell: (row) => (
              <Restore type={type} id={id} {...row} newest={versions[0]} isOld={isOld} />
            ),
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
          <Difference
            label={words.title}
            before={formatVersion(left)}
            after={formatVersion(right)}
          />
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

function parseVersionEntry({ resource, request, response }: BundleEntry): Version {
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
  readonly newest: Version | undefined
  readonly isOld: boolean
}

/** A restored version becomes the newest; the history stays. */
function Restore({ type, id, version, record, newest, isOld }: RestoreProps) {
  const me = useMe()
  const [, navigate] = useLocation()
  // Rejects overwriting an unseen version; a deleted record has none.
  const headers: HeadersInit = newest?.record ? { 'If-Match': `W/"${newest.version}"` } : {}
  if (record === undefined || version === newest?.version || !mayDo(me, type, 'update')) return null
  return (
    <Action
      size="compact-sm"
      disabled={isOld}
      send={() => medplum.put(`fhir/R4/${type}/${id}`, restored(record), undefined, { headers })}
      done={words.restored}
      after={() => navigate(`/resources/${type}/${id}`)}
    >
      {fill(words.restoreThis, { version })}
    </Action>
  )
}
