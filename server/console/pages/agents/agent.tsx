/** One agent: its state, channels, last messages, log, and a test message. */
import { Button, Code, Group, NativeSelect, Stack, Text, Textarea, TextInput } from '@mantine/core'
import type { Agent, Bundle, Endpoint, Parameters } from '@medplum/fhirtypes'
import { useState } from 'react'
import { Link, useParams } from 'wouter'
import { fetchSigned, useGet } from '../../client/api.ts'
import { isAdmin, medplum, useMe } from '../../client/session.ts'
import { Action } from '../../parts/action.tsx'
import { BotLink } from '../../parts/bots.tsx'
import { Form } from '../../parts/form.tsx'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Page, Views } from '../../parts/page.tsx'
import { DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import words from '../../texts/agents.json' with { type: 'json' }
import { fill } from '../../texts/texts.ts'
import { agentState, ConnectionState } from './list.tsx'
import { AgentLog, AgentMessages } from './messages.tsx'

const TABS = ['channels', 'messages', 'log', 'test'] as const
type Tab = (typeof TABS)[number]

export function AgentPage() {
  const { id = '', tab = 'channels' } = useParams<{ id: string; tab?: Tab }>()
  const me = useMe()
  const found = useGet<Agent>(`fhir/R4/Agent/${id}`)
  const names = TABS.filter((name) => name !== 'messages' || isAdmin(me))
  const open = names.includes(tab) ? tab : 'channels'
  return (
    <Loaded query={found}>
      {(agent) => (
        <Page
          title={agent.name ?? id}
          hint={<State id={id} />}
          trail={[{ label: words.title, href: '/agents' }]}
          actions={<Actions id={id} />}
        >
          <Views names={names} labels={words.tabs} open={open} address={`/agents/${id}`}>
            {open === 'channels' && <Channels agent={agent} />}
            {open === 'messages' && <AgentMessages id={id} />}
            {open === 'log' && <AgentLog id={id} />}
            {open === 'test' && <TestMessage id={id} />}
          </Views>
        </Page>
      )}
    </Loaded>
  )
}

interface AgentProps {
  readonly id: string
}

function State({ id }: AgentProps) {
  const found = useGet<Parameters>(`fhir/R4/Agent/${id}/$status`, { every: 5000 })
  const { status, version, lastUpdated } = agentState(found.data)
  if (found.data === undefined) return null
  return (
    <Group gap="xs">
      <ConnectionState status={status} />
      {status !== 'unknown' && (
        <Text size="sm">
          {version}, {words.changed}: <When at={lastUpdated} />
        </Text>
      )}
    </Group>
  )
}

function Actions({ id }: AgentProps) {
  const reload = () => medplum.post(`fhir/R4/Agent/${id}/$reload-config`, {})
  return (
    <>
      <Action send={reload} done={words.reloaded}>
        {words.reload}
      </Action>
      <Button component={Link} href={`/resources/Agent/${id}`} variant="default">
        {words.record}
      </Button>
    </>
  )
}

function Channels({ agent: { channel = [] } }: { readonly agent: Agent }) {
  const ids = channel.flatMap(({ endpoint }) => endpoint?.reference?.split('/')[1] ?? [])
  const endpoints = useGet<Bundle<Endpoint>>(`fhir/R4/Endpoint?_id=${ids.join(',')}`, {
    enabled: ids.length > 0,
  })
  const findAddress = (reference: string | undefined) =>
    endpoints.data?.entry?.find(({ resource }) => `Endpoint/${resource?.id}` === reference)
      ?.resource?.address ?? reference
  return (
    <DataTable
      label={words.tabs.channels}
      rows={channel}
      rowKey={({ name }) => name ?? ''}
      empty={<Empty title={words.noChannels} hint={words.noChannelsHint} />}
      columns={[
        { name: words.channel, cell: ({ name }) => name },
        { name: words.address, cell: ({ endpoint }) => findAddress(endpoint?.reference) },
        {
          name: words.bot,
          cell: ({ targetReference, targetUrl }) => (
            <Target reference={targetReference?.reference} url={targetUrl} />
          ),
        },
      ]}
    />
  )
}

interface TargetProps {
  readonly reference: string | undefined
  readonly url: string | undefined
}

function Target({ reference, url }: TargetProps) {
  if (!reference?.startsWith('Bot/')) return <>{reference ?? url}</>
  return <BotLink reference={reference} />
}

const PING = 'x-application/ping'
const KINDS = [
  { value: PING, label: words.ping },
  { value: 'x-application/hl7-v2+er7', label: words.hl7 },
  { value: 'text/plain', label: words.plain },
]

interface Answer {
  readonly status: number
  readonly text: string
}

const EMPTY = { contentType: PING, destination: '', body: 'PING' }

function TestMessage({ id }: { readonly id: string }) {
  const [answer, setAnswer] = useState<Answer>()
  const send = async (values: typeof EMPTY): Promise<Answer> => {
    // The segments of HL7 messages end in CR.
    const body = values.contentType.includes('hl7') ? values.body.replace(/\n/g, '\r') : values.body
    const response = await fetchSigned(`fhir/R4/Agent/${id}/$push`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ ...values, body, waitForResponse: true }),
    })
    return { status: response.status, text: readAnswer(await response.text()) }
  }
  return (
    <Stack maw={720}>
      <Form saved={EMPTY} send={send} after={setAnswer} submit={words.send} isRepeated>
        {({ text }) => (
          <>
            <NativeSelect label={words.kind} data={KINDS} {...text('contentType')} />
            <TextInput
              label={words.destination}
              description={words.destinationHint}
              {...text('destination')}
            />
            <Textarea label={words.body} autosize minRows={3} maxRows={12} {...text('body')} />
          </>
        )}
      </Form>
      {answer && (
        <div role="status">
          <Text size="sm">{fill(words.took, { status: answer.status })}</Text>
          <Code block>{answer.text}</Code>
        </div>
      )}
    </Stack>
  )
}

/** Returns the text of an OperationOutcome, otherwise the answer with line feeds. */
function readAnswer(text: string): string {
  if (!text.startsWith('{"resourceType":"OperationOutcome"')) return text.replace(/\r\n?/g, '\n')
  const { issue } = JSON.parse(text) as { issue?: { details?: { text?: string } }[] }
  return issue?.[0]?.details?.text ?? text
}
