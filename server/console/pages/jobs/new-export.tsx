/** Asks for an export: of the whole project, of all patients, or of a group. */
import { Button, Modal, SegmentedControl, Stack, TagsInput, TextInput } from '@mantine/core'
import { useForm } from '@mantine/form'
import { useLocation } from 'wouter'
import { useSend } from '../../api.ts'
import { Problem } from '../../parts/problem.tsx'
import { medplum } from '../../session.ts'
import { texts } from '../../texts/texts.ts'

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
      since: (since) => (since && Number.isNaN(Date.parse(since)) ? words.sinceWrong : null),
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
          <TextInput
            label={words.since}
            placeholder="2026-01-01T00:00:00Z"
            {...form.getInputProps('since')}
          />
          <Problem error={start.error} />
          <Button type="submit" loading={start.isPending}>
            {words.go}
          </Button>
        </Stack>
      </form>
    </Modal>
  )
}

/** Answers the id of the export. */
async function kickOff({ level, group, types, since }: Values): Promise<string> {
  const place = { system: '', patient: 'Patient/', group: `Group/${group}/` }[level] ?? ''
  const query = new URLSearchParams()
  if (types.length > 0) query.set('_type', types.join(','))
  if (since !== '') query.set('_since', new Date(since).toISOString())
  await medplum.refreshIfExpired()
  const response = await fetch(`/fhir/R4/${place}$export?${query}`, {
    headers: {
      Authorization: `Bearer ${medplum.getAccessToken()}`,
      Prefer: 'respond-async',
      Accept: 'application/fhir+json',
    },
  })
  const id = response.headers.get('Content-Location')?.split('/').at(-1)
  if (response.status === 202 && id !== undefined) return id
  const { issue } = await response.json()
  throw new Error(issue?.[0]?.details?.text ?? response.statusText)
}
