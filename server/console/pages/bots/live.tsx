/** The live log of a bot. */
import { Code, Stack, Text } from '@mantine/core'
import { useEffect, useRef, useState } from 'react'
import { fetchSigned } from '../../client/api.ts'
import { Dot, runOutcome } from '../../parts/outcome.tsx'
import { texts } from '../../texts/texts.ts'

const words = texts.bots.live
const MOST_LINES = 2000

interface Props {
  readonly botId: string
  readonly runId?: string
}

export function Live({ botId, runId }: Props) {
  const [lines, setLines] = useState<readonly string[]>([])
  const state = useStream(`fhir/R4/Bot/${botId}/$logs`, (event) => {
    if (runId !== undefined && event.data.runId !== runId) return
    setLines((before) => [...before, formatStreamEvent(event)].slice(-MOST_LINES))
  })
  return (
    <Stack>
      <Dot color={state === 'open' ? 'green' : 'yellow'} role="status">
        {words[state]}
      </Dot>
      {lines.length === 0 ? (
        <Text c="dimmed">{words.none}</Text>
      ) : (
        <Code block id="live" aria-live="polite" mah="24rem" tabIndex={0}>
          {lines.join('\n')}
        </Code>
      )}
    </Stack>
  )
}

function formatStreamEvent({ type, data }: StreamEvent): string {
  const run = String(data.runId ?? '').slice(0, 8)
  if (type === 'log') return `${run} ${withLocalTimes(String(data.text).trimEnd())}`
  if (type === 'start') return `${run} ▶ ${localTime(String(data.started))}`
  if (type === 'end') return `${run} ■ ${runOutcome(String(data.status))} ${data.durationMs} ms`
  return `${type} ${JSON.stringify(data)}`
}

const UTC = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/gm
const two = (value: number) => String(value).padStart(2, '0')

/** Lines begin with an instant in UTC; it becomes `2026-03-01 14:05:09.123` in the zone of the browser. */
export function withLocalTimes(log: string): string {
  return log.replace(UTC, localTime)
}

function localTime(instant: string): string {
  const at = new Date(instant)
  const day = [at.getFullYear(), two(at.getMonth() + 1), two(at.getDate())].join('-')
  const time = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(':')
  return `${day} ${time}.${String(at.getMilliseconds()).padStart(3, '0')}`
}

const AGAIN_MS = 1000

interface StreamEvent {
  readonly type: string
  /** JSON from the service, in the type of the listening page. */
  readonly data: Readonly<Record<string, unknown>>
}

type StreamState = 'connecting' | 'open' | 'lost'

function useStream(path: string, hear: (event: StreamEvent) => void): StreamState {
  const [state, setState] = useState<StreamState>('connecting')
  const latest = useRef(hear)
  useEffect(() => {
    latest.current = hear
  }, [hear])
  useEffect(() => {
    const end = new AbortController()
    void follow(path, end.signal, { hear: (event) => latest.current(event), setState })
    return () => end.abort()
  }, [path])
  return state
}

interface Listener {
  readonly hear: (event: StreamEvent) => void
  readonly setState: (state: StreamState) => void
}

async function follow(path: string, signal: AbortSignal, listener: Listener): Promise<void> {
  while (!signal.aborted) {
    try {
      const response = await fetchSigned(path, { signal })
      if (response.ok && response.body) {
        listener.setState('open')
        await read(response.body, listener.hear)
      }
    } catch {
      // An interrupted stream is reopened below.
    }
    if (signal.aborted) return
    listener.setState('lost')
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS))
  }
}

/** https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation */
async function read(body: ReadableStream<Uint8Array>, hear: Listener['hear']): Promise<void> {
  const reader = body.pipeThrough(
    new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>,
  )
  let text = ''
  for await (const piece of reader as unknown as AsyncIterable<string>) {
    text += piece
    const blocks = text.split('\n\n')
    text = blocks.pop() ?? ''
    for (const block of blocks) {
      const type = /^event: (.*)$/m.exec(block)?.[1]
      const data = /^data: (.*)$/m.exec(block)?.[1]
      if (type && data) hear({ type, data: JSON.parse(data) })
    }
  }
}
