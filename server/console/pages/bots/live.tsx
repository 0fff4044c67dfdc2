/** The log of a bot as it is written: runs begin, write and end before the reader's eyes. */
import { Badge, Code, Stack, Text } from '@mantine/core'
import { useState } from 'react'
import { type StreamEvent, useStream } from '../../parts/stream.ts'
import { texts } from '../../texts/texts.ts'

const words = texts.bots.live
const MOST_LINES = 2000

interface Props {
  readonly botId: string
  /** Shows the lines of this run alone. */
  readonly runId?: string
}

export function Live({ botId, runId }: Props) {
  const [lines, setLines] = useState<readonly string[]>([])
  const state = useStream(`fhir/R4/Bot/${botId}/$logs`, (event) => {
    if (runId !== undefined && event.data.runId !== runId) return
    setLines((before) => [...before, lineOf(event)].slice(-MOST_LINES))
  })
  return (
    <Stack>
      <Badge color={state === 'open' ? 'green' : 'yellow'} variant="dot" tt="none" role="status">
        {words[state]}
      </Badge>
      {lines.length === 0 ? (
        <Text c="dimmed">{words.none}</Text>
      ) : (
        <Code block id="live" aria-live="polite" mah="60vh" tabIndex={0}>
          {lines.join('\n')}
        </Code>
      )}
    </Stack>
  )
}

function lineOf({ type, data }: StreamEvent): string {
  const run = String(data.runId ?? '').slice(0, 8)
  if (type === 'log') return `${run} ${String(data.text).trimEnd()}`
  if (type === 'start') return `${run} ▶ ${data.started}`
  if (type === 'end') return `${run} ■ ${data.status} ${data.durationMs} ms`
  return `${type} ${JSON.stringify(data)}`
}
