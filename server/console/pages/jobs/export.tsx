/** One export: how far it is and how fast, and its files, which are fetched with the token. */
import { Button, Group, Progress, Stack, Text } from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { useRef } from 'react'
import { useLocation, useParams } from 'wouter'
import { useSend } from '../../api.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { saveFrom } from '../../parts/save.ts'
import { DataTable } from '../../parts/table.tsx'
import { medplum } from '../../session.ts'
import { fill, texts } from '../../texts/texts.ts'

const words = texts.jobs.export
const EVERY_MS = 1500

interface ListedFile {
  readonly type: string
  readonly url: string
  readonly count?: number
}

interface Status {
  readonly isDone: boolean
  readonly percent: number
  readonly text: string
  readonly files: readonly ListedFile[]
  readonly expires: string | null
}

export function ExportPage() {
  const { id } = useParams<{ id: string }>()
  const [, navigate] = useLocation()
  const path = `fhir/R4/bulkdata/export/${id}`
  const status = useQuery({
    queryKey: [path],
    queryFn: () => statusOf(path),
    refetchInterval: ({ state }) => (state.data?.isDone || state.error ? false : EVERY_MS),
  })
  const cancel = useSend({
    send: () => medplum.delete(path),
    done: words.cancelled,
    after: () => navigate('/jobs'),
  })
  return (
    <Page
      title={words.title}
      hint={id}
      actions={
        <Button variant="default" loading={cancel.isPending} onClick={() => cancel.mutate()}>
          {status.data?.isDone ? words.forget : words.cancel}
        </Button>
      }
    >
      <Loaded query={status}>
        {(data) => (data.isDone ? <Files files={data.files} /> : <Going {...data} />)}
      </Loaded>
    </Page>
  )
}

async function statusOf(path: string): Promise<Status> {
  await medplum.refreshIfExpired()
  const response = await fetch(`/${path}`, {
    headers: { Authorization: `Bearer ${medplum.getAccessToken()}`, Accept: 'application/json' },
  })
  if (response.status === 202) {
    const text = response.headers.get('X-Progress') ?? ''
    return {
      isDone: false,
      percent: Number.parseInt(text, 10) || 0,
      text,
      files: [],
      expires: null,
    }
  }
  const body = await response.json()
  if (!response.ok) throw new Error(body.issue?.[0]?.details?.text ?? response.statusText)
  const files = [...body.output, ...(body.deleted ?? []), ...(body.error ?? [])]
  return { isDone: true, percent: 100, text: '', files, expires: response.headers.get('Expires') }
}

/** The pace is that of the time that this page has watched. */
function Going({ percent, text }: Status) {
  const first = useRef({ at: Date.now(), percent })
  const seconds = (Date.now() - first.current.at) / 1000
  const pace = seconds > 0 ? (percent - first.current.percent) / seconds : 0
  return (
    <Stack gap="xs">
      <Progress value={percent} size="xl" aria-label={words.progress} animated />
      <Group justify="space-between">
        <Text role="status">{text === '' ? words.waits : text}</Text>
        {pace > 0 && <Text c="dimmed">{fill(words.pace, { pace: pace.toFixed(1) })}</Text>}
      </Group>
    </Stack>
  )
}

interface FilesProps {
  readonly files: readonly ListedFile[]
}

function Files({ files }: FilesProps) {
  return (
    <DataTable
      label={words.files}
      rows={files}
      keyOf={({ url }) => url}
      columns={[
        { name: words.type, cell: ({ type }) => type },
        { name: words.records, align: 'right', cell: ({ count }) => count },
        { name: words.file, cell: (file) => <Save {...file} /> },
      ]}
      empty={<Text>{words.nothing}</Text>}
    />
  )
}

function Save({ url }: ListedFile) {
  const name = new URL(url).pathname.split('/').at(-1) ?? 'export.ndjson'
  const save = useSend({ send: () => saveFrom(url, name) })
  return (
    <Button size="compact-sm" loading={save.isPending} onClick={() => save.mutate()}>
      {fill(words.save, { name })}
    </Button>
  )
}
