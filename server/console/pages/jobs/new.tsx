/** Starts an export of the project, all patients or a group, or an import of files. */
import {
  Button,
  FileInput,
  Modal,
  SegmentedControl,
  Stack,
  TagsInput,
  TextInput,
} from '@mantine/core'
import { useForm } from '@mantine/form'
import { useState } from 'react'
import { useLocation } from 'wouter'
import { fetchSigned, readError, type SignedInit, useSend } from '../../client/api.ts'
import { Problem } from '../../client/problem.tsx'
import { medplum } from '../../client/session.ts'
import { TimeInput, toInstant } from '../../parts/time-input.tsx'
import { fill, texts } from '../../texts/texts.ts'

const words = texts.jobs.new

interface Props {
  readonly isOpen: boolean
  readonly close: () => void
}

interface Values {
  readonly level: string
  readonly group: string
  readonly types: string[]
  readonly since: string
}

export function NewExport({ isOpen, close }: Props) {
  const [, navigate] = useLocation()
  const form = useForm<Values>({
    initialValues: { level: 'system', group: '', types: [], since: '' },
    validate: {
      group: (group, { level }) => (level === 'group' && !group ? words.groupMissing : null),
    },
  })
  const start = useSend<Values, string>({
    send: kickOff,
    after: (id) => navigate(`/jobs/exports/${id}`),
    notify: false,
  })
  return (
    <Modal opened={isOpen} onClose={close} title={words.title}>
      <form onSubmit={form.onSubmit((values) => start.mutate(values))}>
        <Stack>
          <SegmentedControl
            aria-label={words.level}
            data={['system', 'patient', 'group'].map((value) => ({
              value,
              label: words[value as 'system'],
            }))}
            {...form.getInputProps('level')}
          />
          {form.values.level === 'group' && (
            <TextInput label={words.groupId} {...form.getInputProps('group')} />
          )}
          <TagsInput
            label={words.types}
            description={words.typesHint}
            {...form.getInputProps('types')}
          />
          <TimeInput type="datetime-local" label={words.since} {...form.getInputProps('since')} />
          <Problem error={start.error} />
          <Button type="submit" loading={start.isPending}>
            {words.go}
          </Button>
        </Stack>
      </form>
    </Modal>
  )
}

/** Not a GET, which has no `Idempotency-Key`. */
const EXPORT: SignedInit = { method: 'POST', headers: { Prefer: 'respond-async' } }

/** Starts an export of all records of the project. */
export function exportAll(): Promise<string> {
  return startJob('$export', EXPORT)
}

async function kickOff({ level, group, types, since }: Values): Promise<string> {
  const place = { system: '', patient: 'Patient/', group: `Group/${group}/` }[level] ?? ''
  const query = new URLSearchParams()
  if (types.length > 0) query.set('_type', types.join(','))
  if (since !== '') query.set('_since', toInstant(since))
  return await startJob(`${place}$export?${query}`, EXPORT)
}

/** Returns the id of the job. Errors: the outcome. */
export async function startJob(path: string, init: SignedInit): Promise<string> {
  const type = 'application/fhir+json'
  const headers = { Accept: type, 'Content-Type': type, ...init.headers }
  const response = await fetchSigned(`fhir/R4/${path}`, { ...init, headers })
  // `job/:id/status`, or an id at its end.
  const place = response.headers.get('Content-Location')?.replace(/\/status$/, '')
  const id = place?.split('/').at(-1)
  if (response.status === 202 && id !== undefined) return id
  throw await readError(response)
}

const importWords = texts.jobs.import

export function NewImport({ isOpen, close }: Props) {
  const [, navigate] = useLocation()
  const [files, setFiles] = useState<File[]>([])
  const [mode, setMode] = useState('upsert')
  const start = useSend<void, string>({
    send: () => beginImport(files, mode),
    after: (id) => navigate(`/jobs/imports/${id}`),
    notify: false,
  })
  return (
    <Modal opened={isOpen} onClose={close} title={importWords.title}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          start.mutate()
        }}
      >
        <Stack>
          <FileInput
            label={importWords.files}
            description={importWords.filesHint}
            placeholder={importWords.choose}
            accept=".ndjson,.jsonl,.gz"
            multiple
            value={files}
            onChange={setFiles}
          />
          <SegmentedControl
            aria-label={importWords.mode}
            value={mode}
            onChange={setMode}
            data={[
              { value: 'upsert', label: importWords.upsert },
              { value: 'ifNoneMatch', label: importWords.ifNoneMatch },
            ]}
          />
          <Problem error={start.error} />
          <Button type="submit" loading={start.isPending}>
            {importWords.go}
          </Button>
        </Stack>
      </form>
    </Modal>
  )
}

async function beginImport(files: readonly File[], mode: string): Promise<string> {
  if (files.length === 0) throw new Error(importWords.missing)
  const types = await Promise.all(files.map(detectResourceType))
  const input: object[] = []
  for (const [place, file] of files.entries()) {
    const part = [
      { name: 'type', valueCode: types[place] },
      { name: 'url', valueUrl: `Binary/${await upload(file)}` },
    ]
    input.push({ name: 'input', part })
  }
  const parameter = [{ name: 'mode', valueCode: mode }, ...input]
  const body = JSON.stringify({ resourceType: 'Parameters', parameter })
  return await startJob('$import', { method: 'POST', body })
}

const uploads = new WeakMap<File, string>()

/** Uploads a file once, so that a repeated import of it is the same request. Returns the id of its Binary. */
async function upload(file: File): Promise<string> {
  const known = uploads.get(file)
  if (known !== undefined) return known
  const contentType = 'application/fhir+ndjson'
  const made = await medplum.createBinary({ data: file, contentType, filename: file.name })
  const { id = '' } = made
  uploads.set(file, id)
  return id
}

const HEAD_BYTES = 64 * 1024

/** Returns the type of the first line; a file has one type. Errors: the file is not NDJSON of resources. */
async function detectResourceType(file: File): Promise<string> {
  const isPacked = file.name.endsWith('.gz')
  const unpacked = file.stream().pipeThrough(new DecompressionStream('gzip'))
  const reader = (isPacked ? unpacked : file.slice(0, HEAD_BYTES).stream()).getReader()
  const { value } = await reader.read().finally(() => void reader.cancel())
  const [, type] = /"resourceType"\s*:\s*"(\w+)"/.exec(new TextDecoder().decode(value)) ?? []
  if (type === undefined) throw new Error(fill(importWords.noLines, { name: file.name }))
  return type
}
