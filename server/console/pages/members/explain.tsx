/** Explains a member's access to each type, a record or a search, with the deciding policy entries. */
import { Code, Divider, Stack, Text, TextInput } from '@mantine/core'
import type { Parameters, ParametersParameter } from '@medplum/fhirtypes'
import { useState } from 'react'
import { medplum } from '../../client/session.ts'
import { Form } from '../../parts/form.tsx'
import { Dot } from '../../parts/outcome.tsx'
import { DataTable } from '../../parts/table.tsx'
import words from '../../texts/explain.json' with { type: 'json' }
import { fill, texts } from '../../texts/texts.ts'
import { RecordPicker } from '../resources/picker.tsx'
import { Overview, type PolicyNames, plainSource, usePolicyNames } from './overview.tsx'

export function Explain({ member }: { readonly member: string }) {
  const [answer, setAnswer] = useState<Parameters>()
  const ask = (typed: string): Promise<Parameters> => {
    const text = typed.trim()
    const isRecord = /^[A-Za-z]+\/[^?]+$/.test(text)
    return medplum.post('fhir/R4/AccessPolicy/$explain', {
      membership: member,
      ...(isRecord ? { resource: text } : { search: text }),
    })
  }
  return (
    <Stack>
      <Overview member={member} />
      <Divider />
      <Text fw={600}>{words.one}</Text>
      <Form
        name={`explain:${member}`}
        saved={{ resource: '' }}
        send={({ resource }) => ask(resource)}
        after={setAnswer}
        submit={words.ask}
      >
        {({ text, error, set }) => (
          <>
            <RecordPicker
              targets={[]}
              onPick={({ reference = '' }) => set({ resource: reference })}
            />
            <TextInput
              label={words.resource}
              description={words.hint}
              placeholder="Patient/123"
              {...text('resource')}
              error={error('resource')}
            />
          </>
        )}
      </Form>
      {answer && <Answer parameters={answer.parameter ?? []} />}
    </Stack>
  )
}

function Answer({ parameters }: { readonly parameters: readonly ParametersParameter[] }) {
  const names = usePolicyNames()
  const value = (name: string) => parameters.find((one) => one.name === name)
  const rulings = parameters.filter(({ name }) => name === 'interaction')
  const entries = parameters.filter(({ name }) => name === 'entry')
  const total = value('total')?.valueInteger
  return (
    <Stack role="status">
      {rulings.length > 0 ? (
        <DataTable
          label={words.rulings}
          rows={rulings.map(({ part = [] }) => part)}
          rowKey={(part) => findPart(part, 'code')?.valueCode ?? ''}
          columns={columns(names)}
        />
      ) : (
        <Text>
          <Allowed is={value('allowed')?.valueBoolean === true} />{' '}
          {plainSource(value('reason')?.valueString ?? '', names)}
          {total !== undefined && ` ${fill(words.total, { total })}`}
        </Text>
      )}
      {entries.map(({ part = [] }) => (
        <div key={findPart(part, 'source')?.valueString}>
          <Text size="sm" fw={600}>
            {plainSource(findPart(part, 'source')?.valueString ?? '', names)}
          </Text>
          <Code block>{pretty(findPart(part, 'compiled')?.valueString)}</Code>
        </div>
      ))}
    </Stack>
  )
}

type Part = readonly ParametersParameter[]

const columns = (names: PolicyNames) => [
  { name: words.interaction, cell: (part: Part) => findPart(part, 'code')?.valueCode },
  {
    name: words.allowed,
    cell: (part: Part) => <Allowed is={findPart(part, 'allowed')?.valueBoolean === true} />,
  },
  {
    name: words.reason,
    cell: (part: Part) => plainSource(findPart(part, 'reason')?.valueString ?? '', names),
  },
  { name: words.hidden, cell: (part: Part) => joinPaths(part, 'hidden') },
  { name: words.readonly, cell: (part: Part) => joinPaths(part, 'readonly') },
]

function Allowed({ is }: { readonly is: boolean }) {
  return <Dot color={is ? 'green' : 'red'}>{is ? texts.common.yes : texts.common.no}</Dot>
}

function findPart(part: Part, name: string): ParametersParameter | undefined {
  return part.find((one) => one.name === name)
}

function joinPaths(part: Part, name: string): string {
  return part.flatMap((one) => (one.name === name ? (one.valueString ?? []) : [])).join(', ')
}

function pretty(json = '{}'): string {
  return JSON.stringify(JSON.parse(json), null, 2)
}
