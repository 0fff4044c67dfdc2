/** An export or import: progress, speed, files (fetched with the token) and rejected lines. */
import { Group, Progress, Stack, Text, Title } from '@mantine/core'
import type { OperationOutcome } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { useRef } from 'react'
import { useLocation, useParams } from 'wouter'
import { fetchSigned, readError } from '../../client/api.ts'
import { medplum } from '../../client/session.ts'
import { Action, ConfirmedAction } from '../../parts/action.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { QueryTable } from '../../parts/query-table.tsx'
import { saveFrom } from '../../parts/save.ts'
import { DataTable } from '../../parts/table.tsx'
import { fill, texts } from '../../texts/texts.ts'

const words = texts.jobs.bulk
const EVERY_MS = 1500

interface ListedFile {
  readonly type: string
  readonly url: string
  readonly count?: number
}

interface Taken {
  readonly type?: string
  readonly inputUrl: string
  readonly created: number
  readonly updated: number
  readonly unchanged: number
  readonly skipped: number
}

interface Manifest {
  readonly output: readonly (ListedFile & Taken)[]
  readonly deleted?: readonly ListedFile[]
  readonly error?: readonly ListedFile[]
}

interface Status {
  readonly text: string
  readonly manifest?: Manifest
}

const KINDS = { exports: 'export', imports: 'import' } as const

export function BulkPage() {
  const { kind: asked, id } = useParams<{ kind: string; id: string }>()
  const kind = asked === 'imports' ? 'imports' : 'exports'
  const [, navigate] = useLocation()
  const path = `fhir/R4/bulkdata/${KINDS[kind]}/${id}`
  const status = useQuery({
    queryKey: [path],
    queryFn: () => fetchJobStatus(path),
    refetchInterval: ({ state }) => (state.data?.manifest || state.error ? false : EVERY_MS),
  })
  const cancel = {
    send: () => medplum.delete(path),
    done: words.cancelled,
    after: () => navigate('/jobs'),
  }
  return (
    <Page
      title={words[kind]}
      hint={id}
      actions={
        status.data?.manifest ? (
          <ConfirmedAction label={words.forget} confirm={words.forget} {...cancel}>
            <Text size="sm">{words.forgetHint}</Text>
          </ConfirmedAction>
        ) : (
          <Action {...cancel}>{words.cancel}</Action>
        )
      }
    >
      <Loaded query={status}>
        {({ manifest, text }) => {
          if (manifest === undefined) return <Going text={text} />
          const { output, deleted = [], error = [] } = manifest
          if (kind === 'exports') return <Files files={[...output, ...deleted, ...error]} />
          return <Results output={output} error={error} />
        }}
      </Loaded>
    </Page>
  )
}

async function fetchJobStatus(path: string): Promise<Status> {
  const response = await fetchSigned(path, { headers: { Accept: 'application/json' } })
  if (response.status === 202) {
    return { text: response.headers.get('X-Progress') ?? '' }
  }
  if (!response.ok) throw await readError(response)
  return { text: '', manifest: await response.json() }
}

/** The speed covers the time since this page opened. */
function Going({ text }: Status) {
  const percent = Number.parseInt(text, 10) || 0
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

type ResultsProps = Required<Pick<Manifest, 'output' | 'error'>>

function Results({ output, error }: ResultsProps) {
  const refused = error.reduce((sum, { count = 0 }) => sum + count, 0)
  return (
    <Stack>
      <DataTable
        label={words.inputs}
        rows={output}
        rowKey={({ inputUrl }) => inputUrl}
        columns={[
          { name: words.input, cell: ({ inputUrl }) => inputUrl },
          { name: words.type, cell: ({ type }) => type },
          ...COUNTS.map((name) => ({
            name: words[name],
            align: 'right' as const,
            cell: (row: Taken) => row[name],
          })),
        ]}
      />
      <Title>{fill(words.refused, { count: refused })}</Title>
      {error.map((file) => (
        <Refused key={file.url} {...file} />
      ))}
    </Stack>
  )
}

const COUNTS = ['created', 'updated', 'unchanged', 'skipped'] as const
/** The file has the rest. */
const MOST_SHOWN = 100

/** Each line of the file is the outcome of an input line. */
function Refused(file: ListedFile) {
  const lines = useQuery({
    queryKey: [file.url],
    queryFn: async () => {
      const text = await (await medplum.download(file.url)).text()
      const rows = text.split('\n').filter((line) => line !== '')
      return rows.slice(0, MOST_SHOWN).map((row) => JSON.parse(row) as OperationOutcome)
    },
  })
  return (
    <>
      <QueryTable
        query={lines}
        label={words.file}
        rows={(rows) => rows.flatMap(({ issue = [] }) => issue)}
        rowKey={({ diagnostics, details, expression }) =>
          `${diagnostics} ${details?.text} ${expression}`
        }
        columns={[
          { name: words.line, cell: ({ diagnostics }) => diagnostics },
          { name: words.why, cell: ({ details }) => details?.text },
          { name: words.where, cell: ({ expression }) => expression?.join(', ') },
        ]}
      />
      <div>
        <Save {...file} />
      </div>
    </>
  )
}

function Files({ files }: { readonly files: readonly ListedFile[] }) {
  return (
    <Stack>
      {files.length > 1 && (
        <Group>
          <Action variant="filled" send={() => saveAll(files)}>
            {words.saveAll}
          </Action>
        </Group>
      )}
      <DataTable
        label={words.files}
        rows={files}
        rowKey={({ url }) => url}
        columns={[
          { name: words.type, cell: ({ type }) => type },
          { name: words.records, align: 'right', cell: ({ count }) => count },
          { name: words.file, cell: (file) => <Save {...file} /> },
        ]}
        empty={<Text>{words.nothing}</Text>}
      />
    </Stack>
  )
}

/** One after the other: each is in memory until the browser has it. */
async function saveAll(files: readonly ListedFile[]): Promise<void> {
  for (const { url } of files) await saveFrom(url, fileName(url))
}

function fileName(url: string): string {
  return new URL(url).pathname.split('/').at(-1) ?? 'export.ndjson'
}

function Save({ url }: ListedFile) {
  const name = fileName(url)
  return (
    <Action variant="filled" size="compact-sm" send={() => saveFrom(url, name)}>
      {fill(words.save, { name })}
    </Action>
  )
}
