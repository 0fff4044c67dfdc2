/** Dead letters in answers of the service, and the buttons that replay or discard one or those of a filter. */
import { Text, TextInput } from '@mantine/core'
import { notifications } from '@mantine/notifications'
import type { Parameters, ParametersParameter } from '@medplum/fhirtypes'
import { useState } from 'react'
import { useSend } from '../../client/api.ts'
import { medplum } from '../../client/session.ts'
import { Confirm } from '../../parts/action.tsx'
import words from '../../texts/dead-letters.json' with { type: 'json' }
import { fill } from '../../texts/texts.ts'

export type Filter = Readonly<Record<string, string>>

const RATE = '10'

interface Props {
  readonly filter: Filter
  readonly isOne?: boolean
}

export function LetterActions({ filter, isOne = false }: Props) {
  const [rate, setRate] = useState(RATE)
  const [reason, setReason] = useState('')
  const replay = useChange('replay', words.replayed)
  const discard = useChange('discard', words.discarded)
  return (
    <>
      <Confirm
        label={isOne ? words.replay : words.replayAll}
        confirm={words.replay}
        color="blue"
        onConfirm={() => replay.mutate({ ...filter, rate: Number(rate) })}
      >
        <Text size="sm">{words.replayHint}</Text>
        {!isOne && (
          <TextInput
            name="rate"
            type="number"
            min={1}
            max={1000}
            label={words.rate}
            value={rate}
            onChange={({ currentTarget: { value } }) => setRate(value)}
          />
        )}
      </Confirm>
      <Confirm
        label={isOne ? words.discard : words.discardAll}
        confirm={words.discard}
        isComplete={reason.trim() !== ''}
        onConfirm={() => discard.mutate({ ...filter, reason })}
      >
        <Text size="sm">{words.discardHint}</Text>
        <TextInput
          name="reason"
          label={words.reason}
          value={reason}
          onChange={({ currentTarget: { value } }) => setReason(value)}
        />
      </Confirm>
    </>
  )
}

/** `done` names the count of changed letters. */
function useChange(operation: 'replay' | 'discard', done: string) {
  return useSend<object, Parameters>({
    send: (body) => medplum.post(`fhir/R4/Bot/$${operation}`, body, 'application/json'),
    after: ({ parameter }) => {
      const message = fill(done, { count: parameter?.[0]?.valueInteger ?? 0 })
      notifications.show({ message, color: 'green' })
    },
  })
}

export interface Letter {
  readonly id: string
  readonly kind: string
  /** `Bot/id`, or the host of a web hook. */
  readonly target: string
  readonly subscription: string | undefined
  readonly focus: string | undefined
  readonly attempts: number
  readonly error: string | undefined
  readonly added: string | undefined
  readonly failed: string | undefined
  readonly replayAt: string | undefined
}

export interface LetterGroup {
  readonly kind: string
  readonly target: string
  readonly error: string | undefined
  readonly count: number
  readonly last: string | undefined
}

type Parts = readonly ParametersParameter[]

export function parseLetters({ parameter = [] }: Parameters): readonly Letter[] {
  return parameter.filter(({ name }) => name === 'letter').map(({ part = [] }) => toLetter(part))
}

export function parseGroups({ parameter = [] }: Parameters): readonly LetterGroup[] {
  return parameter.filter(({ name }) => name === 'group').map(({ part = [] }) => toGroup(part))
}

function toLetter(part: Parts): Letter {
  const at = (name: string) => part.find((item) => item.name === name)
  return {
    id: at('id')?.valueUuid?.replace('urn:uuid:', '') ?? '',
    kind: at('kind')?.valueCode ?? '',
    target: targetIn(part),
    subscription: at('subscription')?.valueReference?.reference,
    focus: at('focus')?.valueReference?.reference,
    attempts: at('attempts')?.valueInteger ?? 0,
    error: at('error')?.valueString,
    added: at('added')?.valueInstant,
    failed: at('failed')?.valueInstant,
    replayAt: at('replayAt')?.valueInstant,
  }
}

function toGroup(part: Parts): LetterGroup {
  const at = (name: string) => part.find((item) => item.name === name)
  return {
    kind: at('kind')?.valueCode ?? '',
    target: targetIn(part),
    error: at('error')?.valueString,
    count: at('count')?.valueInteger ?? 0,
    last: at('failed')?.valueInstant,
  }
}

function targetIn(part: Parts): string {
  const at = (name: string) => part.find((item) => item.name === name)
  return at('bot')?.valueReference?.reference ?? at('host')?.valueString ?? ''
}
