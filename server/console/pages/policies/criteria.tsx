/** The criteria of a policy entry as rows of a search parameter and a value. */
import { Anchor, Autocomplete, Button, CloseButton, Group, Stack, Text } from '@mantine/core'
import { useState } from 'react'
import { type Condition, joinCriteria, splitCriteria } from '../../client/policies.ts'
import { useTypes } from '../../client/types.ts'
import { useNames } from '../../parts/form.tsx'
import { Hint } from '../../parts/text.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { RecordPicker } from '../resources/picker.tsx'

const words = texts.policies.criteria
/** Parameters that criteria of `*` may have. */
const COMMON = ['_id', '_compartment', '_tag', '_security', '_profile', '_lastUpdated']
const PLACEHOLDERS = ['%profile', '%profile.id', '%patient', '%patient.id', '%organization']

interface Props {
  readonly type: string
  readonly criteria: string | undefined
  /** Names of the policy's parameters. */
  readonly parameters: readonly string[]
  readonly onChange: (criteria: string | undefined) => void
}

export function CriteriaFields({ type, criteria, parameters, onChange }: Props) {
  const conditions = splitCriteria(criteria)
  const { names, drop } = useNames(conditions.length)
  const known = useParameters(type)
  const values = [...PLACEHOLDERS, ...parameters.flatMap((name) => [`%${name}`, `%${name}.id`])]
  const write = (next: readonly Condition[]) => onChange(joinCriteria(type, next))
  return (
    <Stack gap="xs">
      <Text size="sm" fw={500}>
        {words.title}
      </Text>
      {conditions.length === 0 ? (
        <Text size="sm">{fill(words.all, { type: type === '*' ? words.anyType : type })}</Text>
      ) : (
        <Hint>{words.every}</Hint>
      )}
      {conditions.map((condition, place) => (
        <ConditionFields
          key={names[place]}
          condition={condition}
          known={known}
          values={[...new Set(values)]}
          onChange={(next) => write(conditions.with(place, next))}
          onRemove={() => {
            drop(place)
            write(conditions.toSpliced(place, 1))
          }}
        />
      ))}
      <Group>
        <Button
          variant="default"
          size="xs"
          onClick={() => write([...conditions, { parameter: '', value: '' }])}
        >
          {words.add}
        </Button>
      </Group>
    </Stack>
  )
}

interface Parameter {
  readonly name: string
  readonly isReference: boolean
}

function useParameters(type: string): readonly Parameter[] {
  const { data = [] } = useTypes()
  if (type === '*') {
    return COMMON.map((name) => ({ name, isReference: name === '_compartment' }))
  }
  const { searchParam = [] } = data.find((one) => one.type === type) ?? {}
  const own = searchParam.map(({ name = '', type: kind }) => ({
    name,
    isReference: kind === 'reference',
  }))
  return [{ name: '_compartment', isReference: true }, ...own.filter(({ name }) => name !== '')]
}

interface ConditionProps {
  readonly condition: Condition
  readonly known: readonly Parameter[]
  readonly values: readonly string[]
  readonly onChange: (condition: Condition) => void
  readonly onRemove: () => void
}

function ConditionFields({ condition, known, values, onChange, onRemove }: ConditionProps) {
  const { parameter, value } = condition
  const [isPicking, setPicking] = useState(false)
  const last = parameter.split('.').at(-1)?.replace(/:.*/, '')
  const isReference =
    known.find(({ name }) => name === last)?.isReference ?? parameter.includes('.')
  return (
    <Stack gap={4}>
      <Group gap="xs" align="flex-end" wrap="nowrap">
        <Autocomplete
          label={words.parameter}
          data={[...new Set(known.map(({ name }) => name))]}
          value={parameter}
          onChange={(next) => onChange({ ...condition, parameter: next.replace(/[&?=\s]/g, '') })}
          style={{ flex: 1 }}
          data-parameter
        />
        <Autocomplete
          label={words.value}
          // All placeholders, for any typed text.
          filter={({ options }) => options}
          data={[...values]}
          value={value}
          onChange={(next) => onChange({ ...condition, value: next })}
          style={{ flex: 1 }}
          data-value
        />
        <CloseButton aria-label={words.remove} mb={4} onClick={onRemove} />
      </Group>
      {isReference && (
        <Anchor
          component="button"
          type="button"
          size="xs"
          style={{ alignSelf: 'flex-end' }}
          onClick={() => setPicking(!isPicking)}
        >
          {words.pick}
        </Anchor>
      )}
      {isPicking && (
        <RecordPicker
          targets={[]}
          onPick={({ reference = '' }) => {
            setPicking(false)
            onChange({ ...condition, value: reference })
          }}
        />
      )}
    </Stack>
  )
}
