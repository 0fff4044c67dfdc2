/** A record as JSON, judged by the service while it is typed. */
import { Button, Group, Stack, Text } from '@mantine/core'
import { useDebouncedValue } from '@mantine/hooks'
import type { OperationOutcome, Resource } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { Editor, jsonText } from '../../parts/editor.tsx'
import { Problem } from '../../parts/problem.tsx'
import { medplum } from '../../session.ts'
import { texts } from '../../texts/texts.ts'
import type { Editing } from './editing.ts'

const words = texts.record
const PAUSE_MS = 600

export function RecordJson({ draft, save, isBusy, error }: Editing) {
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
