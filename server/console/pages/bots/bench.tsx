/** Runs a bot with custom input and shows the result. */
import { Button, Group, SegmentedControl, Stack, Code as Text, Title } from '@mantine/core'
import type { Bot } from '@medplum/fhirtypes'
import { useEffect, useRef, useState } from 'react'
import { Link } from 'wouter'
import { fetchSigned } from '../../client/api.ts'
import { useDraft } from '../../client/drafts.ts'
import { Problem } from '../../client/problem.tsx'
import { isAdmin, useMe } from '../../client/session.ts'
import { Editor, jsonText } from '../../parts/editor.tsx'
import { RunOutcome } from '../../parts/outcome.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { milliseconds } from './runs.ts'

const words = texts.bots.bench

const KINDS = {
  json: { type: 'application/json', first: '{\n  "name": "Ada"\n}' },
  hl7: {
    type: 'x-application/hl7-v2+er7',
    first:
      'MSH|^~\\&|HIS|WARD|LAB|LAB|20260301120000||ADT^A01|1|P|2.5\nPID|1||12345||Quinones^Maria',
  },
  form: { type: 'application/x-www-form-urlencoded', first: 'name=Ada' },
  text: { type: 'text/plain', first: '' },
} as const

type Kind = keyof typeof KINDS

/** Characters of a streamed answer that the page keeps: the last ones. */
const MOST_SHOWN = 1_000_000

interface Answer {
  readonly status: number
  readonly body: string
  readonly runId: string | null
  readonly ms: number
  /** Present while the bot streams its answer, and after that. */
  readonly stream?: { readonly parts: number; readonly bytes: number }
}

export function Bench({ bot }: { readonly bot: Bot }) {
  const me = useMe()
  const [kind, setKind] = useState<Kind>('json')
  const draft = useDraft<string>(`bot-input/${bot.id}/${kind}`, KINDS[kind].first)
  const [answer, setAnswer] = useState<Answer>()
  const [error, setError] = useState<unknown>()
  const running = useRef<AbortController>(undefined)
  const [isBusy, setBusy] = useState(false)
  // Leaving the page disconnects, which cancels a run that streams.
  useEffect(() => () => running.current?.abort(), [])
  const run = async () => {
    const controller = new AbortController()
    running.current = controller
    setBusy(true)
    setError(undefined)
    // The link to the run would open the previous one.
    setAnswer(undefined)
    const call = { bot, kind, input: draft.value, signal: controller.signal, onPart: setAnswer }
    await execute(call).then(setAnswer, (cause: unknown) => {
      if (!controller.signal.aborted) setError(cause)
    })
    setBusy(false)
  }
  return (
    <Stack>
      <SegmentedControl
        aria-label={words.kind}
        value={kind}
        onChange={(value) => setKind(value as Kind)}
        data={Object.keys(KINDS).map((value) => ({ value, label: words[value as Kind] }))}
        w="fit-content"
      />
      <Editor
        key={kind}
        label={words.input}
        {...(kind === 'json' ? { extensions: jsonText } : {})}
        height="9rem"
        value={draft.value}
        onChange={draft.set}
      />
      <Group>
        <Button onClick={() => void run()} loading={isBusy} id="run">
          {words.run}
        </Button>
        {isBusy && answer?.stream && (
          <Button variant="default" onClick={() => running.current?.abort()} id="stop">
            {words.stop}
          </Button>
        )}
        {answer?.runId && isAdmin(me) && (
          <Button variant="default" component={Link} href={`/bots/${bot.id}/runs/${answer.runId}`}>
            {words.toRun}
          </Button>
        )}
      </Group>
      <Problem error={error} />
      {answer && <Answered {...answer} />}
    </Stack>
  )
}

function Answered({ status, body, ms, stream }: Answer) {
  return (
    <section aria-live="polite">
      <Group mb="xs">
        <Title order={3}>{words.answer}</Title>
        <RunOutcome status={status < 400 ? 'ok' : 'thrown'} />
        <span>{fill(words.took, { status, time: milliseconds(ms) })}</span>
        {stream && <span id="streamed">{fill(words.streamed, { ...stream })}</span>}
      </Group>
      <Text block id="answer" mah="18rem" tabIndex={0}>
        {body}
      </Text>
    </section>
  )
}

interface Call {
  readonly bot: Bot
  readonly kind: Kind
  readonly input: string
  readonly signal: AbortSignal
  /** Called for each part of a streamed answer. */
  onPart(answer: Answer): void
}

/** Treats the bot's failure as an answer, as its caller gets it. Errors: an answer that is cut. */
async function execute({ bot, kind, input, signal, onPart }: Call): Promise<Answer> {
  const start = performance.now()
  // The types of the client do not have the element yet.
  const takesStream = 'streamingEnabled' in bot && bot.streamingEnabled === true
  const response = await fetchSigned(`fhir/R4/Bot/${bot.id}/$execute`, {
    method: 'POST',
    headers: {
      'Content-Type': KINDS[kind].type,
      ...(takesStream ? { Accept: 'text/event-stream' } : {}),
    },
    // HL7 segments end with a carriage return.
    body: kind === 'hl7' ? input.replace(/\n/g, '\r') : input,
    signal,
  })
  const { status } = response
  const runId = response.headers.get('X-Bot-Run-Id')
  const isStream = takesStream && response.headers.get('X-Accel-Buffering') === 'no'
  if (!isStream || response.body === null) {
    const text = await response.text()
    return { status, runId, body: pretty(text), ms: performance.now() - start }
  }
  let answer: Answer = { status, runId, body: '', ms: 0, stream: { parts: 0, bytes: 0 } }
  const decoder = new TextDecoder()
  const reader = response.body.getReader()
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    const { parts = 0, bytes = 0 } = answer.stream ?? {}
    answer = {
      ...answer,
      body: (answer.body + decoder.decode(read.value, { stream: true })).slice(-MOST_SHOWN),
      ms: performance.now() - start,
      stream: { parts: parts + 1, bytes: bytes + read.value.length },
    }
    onPart(answer)
  }
  return { ...answer, ms: performance.now() - start }
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    return text.replace(/\r\n?/g, '\n')
  }
}
