/** Saves a record; asks before removing elements, and never overwrites a newer version. */
import { Button, Code, Group, List, Modal, Stack, Text } from '@mantine/core'
import type { Resource } from '@medplum/fhirtypes'
import { useState } from 'react'
import { replaceVersion, useSend } from '../../client/api.ts'
import { conflicts, mapVersions, merged, type Versions } from '../../client/merging.ts'
import { Behind } from '../../parts/behind.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { type Removal, removalsBetween, withoutService } from './editing.ts'

const words = texts.saving

/** `body`: the record, or its text as typed. */
export interface Sent {
  readonly record: Resource
  readonly body: Resource | string
}

interface Saved {
  readonly type: string
  readonly id: string
  readonly base: Resource
  readonly draft: string
  /** Called with the record as it was sent, and the `meta` of its new version. */
  readonly after: (saved: Resource) => void
}

export function useSaving({ type, id, base, draft, after }: Saved) {
  const [asked, setAsked] = useState<Sent>()
  const saving = useSend<Sent, Resource>({
    send: ({ body }) => replaceVersion(`fhir/R4/${type}/${id}`, body, base.meta?.versionId),
    done: texts.common.saved,
    draft,
    after: ({ meta = {} }, { record }) => after({ ...record, meta }),
    notify: false,
    // A newer version is shown next to the typed text.
    reread: [`fhir/R4/${type}/${id}`],
  })
  const save = (sent: Sent) => {
    if (removalsBetween(base, sent.record).length > 0) setAsked(sent)
    else saving.mutate(sent)
  }
  const question = asked && (
    <Question
      removals={removalsBetween(base, asked.record)}
      cancel={() => setAsked(undefined)}
      confirm={() => {
        setAsked(undefined)
        saving.mutate(asked)
      }}
    />
  )
  const { isPending: isBusy, error, reset } = saving
  return { save, question, isBusy, error, reset }
}

interface QuestionProps {
  readonly removals: readonly Removal[]
  readonly cancel: () => void
  readonly confirm: () => void
}

function Question({ removals, cancel, confirm }: QuestionProps) {
  return (
    <Modal opened onClose={cancel} title={words.removes} size="lg">
      <Stack>
        <Text size="sm">{words.removesHint}</Text>
        <List listStyleType="none" spacing="xs" className="removals">
          {removals.map(({ path, value }) => (
            <List.Item key={path}>
              <Text size="sm" fw={600} component="div">
                {path}
              </Text>
              <Code block>{typeof value === 'string' ? value : JSON.stringify(value)}</Code>
            </List.Item>
          ))}
        </List>
        <Group justify="flex-end">
          <Button variant="default" onClick={cancel} data-autofocus>
            {words.keepEditing}
          </Button>
          <Button color="red" data-confirm onClick={confirm}>
            {words.removeAndSave}
          </Button>
        </Group>
      </Stack>
    </Modal>
  )
}

interface BehindRecordProps {
  readonly versions: Versions<Resource>
  readonly merge: (edit: { readonly base: Resource; readonly value: Resource }) => void
  readonly discard: () => void
}

/** Shown when another person has saved the record meanwhile. */
export function BehindRecord({ versions, merge, discard }: BehindRecordProps) {
  const { newest } = versions
  const number = newest.meta?.versionId ?? ''
  return (
    <Behind
      title={fill(words.behind, { number })}
      both={conflicts(versions)}
      mergeLabel={fill(words.merge, { number })}
      compareLabel={fill(words.compare, { number })}
      merge={() => merge({ base: newest, value: merged(versions) })}
      discard={discard}
      compare={() => mapVersions(versions, formatContent)}
    />
  )
}

function formatContent(record: Resource): string {
  return JSON.stringify(withoutService(record), null, 2)
}
