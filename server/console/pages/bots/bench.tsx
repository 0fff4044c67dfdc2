/** Runs a bot with custom input and shows the result. */
import { Button, Group, SegmentedControl, Stack, Code as Text, Title } from '@mantine/core'
import type { Bot } from '@medplum/fhirtypes'
import { useState } from 'react'
import { Link } from 'wouter'
import { useDraft } from '../../client/drafts.ts'
import { Problem } from '../../client/problem.tsx'
import { isAdmin, medplum, useMe } from '../../client/session.ts'
import { Editor, jsonText } from '../../parts/editor.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { milliseconds } from './runs.ts'
import { Outcome } from './status.tsx'

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

interface Answer {
  readonly status: number
  readonly body: string
  readonly runId: string | null
  readonly ms: number
}

interface Props {
  readonly bot: Bot
}

export function Bench({ bot }: Props) {
  const me = useMe()
  const [kind, setKind] = useState<Kind>('json')
  const draft = useDraft<string>(`bot-input/${bot.id}/${kind}`, KINDS[kind].first)
  const [answer, setAnswer] = useState<Answer>()
  const [error, setError] = useState<unknown>()
  const [isBusy, setBusy] = useState(false)
  const run = async () => {
    setBusy(true)
    setError(undefined)
    await execute(bot, kind, draft.value).then(setAnswer, setError)
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
        height="12rem"
        value={draft.value}
        onChange={draft.set}
      />
      <Group>
        <Button onClick={() => void run()} loading={isBusy} id="run">
          {words.run}
        </Button>
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

function Answered({ status, body, ms }: Answer) {
  return (
    <section aria-live="polite">
      <Group mb="xs">
        <Title order={2} size="h4">
          {words.answer}
        </Title>
        <Outcome status={status < 400 ? 'ok' : 'failed'} />
        <span>{fill(words.took, { status, time: milliseconds(ms) })}</span>
      </Group>
      <Text block id="answer">
        {body}
      </Text>
    </section>
  )
}

/** Treats the bot's failure as an answer, as its caller gets it. */
async function execute({ id }: Bot, kind: Kind, input: string): Promise<Answer> {
  await medplum.refreshIfExpired()
  const start = performance.now()
  const response = await fetch(medplum.fhirUrl('Bot', id ?? '', '$execute'), {
    method: 'POST',
    headers: {
      Authorization: `Bearer ${medplum.getAccessToken()}`,
      'Content-Type': KINDS[kind].type,
    },
    // HL7 segments end with a carriage return.
    body: kind === 'hl7' ? input.replace(/\n/g, '\r') : input,
  })
  const text = await response.text()
  const ms = performance.now() - start
  if (response.status === 401) await medplum.get('auth/me', { cache: 'no-store' })
  return {
    status: response.status,
    body: pretty(text),
    runId: response.headers.get('X-Bot-Run-Id'),
    ms,
  }
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    return text.replace(/\r\n?/g, '\n')
  }
}
