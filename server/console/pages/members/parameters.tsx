/** Values of a policy's parameters: records are picked, other values are typed. */
import { Group, Stack, Text, TextInput } from '@mantine/core'
import type { AccessPolicy, Bundle, SearchParameter } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { type ParameterUse, parameterUse, policyParameters } from '../../client/policies.ts'
import { medplum } from '../../client/session.ts'
import { texts } from '../../texts/texts.ts'
import { RecordPicker } from '../resources/picker.tsx'
import { RecordTitle } from '../resources/values.tsx'

const words = texts.members

export interface Parameter {
  readonly name: string
  readonly value: string
}

/** Returns the parameters that the policy names, with the values given so far. */
export function parametersFor(
  policy: AccessPolicy | undefined,
  given: readonly Parameter[] = [],
): readonly Parameter[] {
  const named = policy ? policyParameters(policy) : []
  const values = new Map(given.map(({ name, value }) => [name, value]))
  const others = given.filter(({ name, value }) => value !== '' && !named.includes(name))
  return [...named.map((name) => ({ name, value: values.get(name) ?? '' })), ...others]
}

interface Props {
  readonly policy: AccessPolicy | undefined
  readonly parameter: Parameter
  readonly onChange: (parameter: Parameter) => void
}

export function ParameterField({ policy, parameter, onChange }: Props) {
  const { name, value } = parameter
  const use = policy && parameterUse(policy, name)
  const { data: targets } = useQuery({
    queryKey: ['targets', use?.type, use?.parameter],
    queryFn: () => (use ? findTargets(use) : null),
    staleTime: Number.POSITIVE_INFINITY,
  })
  if (targets) {
    return (
      <div data-parameter={name}>
        <PickedRecord
          // The first type to choose is that of the targets.
          key={targets.join(',')}
          label={name}
          reference={value}
          targets={targets}
          onPick={(reference) => onChange({ name, value: reference })}
        />
      </div>
    )
  }
  return (
    <Group grow mt="xs" align="end">
      <TextInput
        label={words.parameter}
        value={name}
        onChange={({ currentTarget }) => onChange({ name: currentTarget.value, value })}
      />
      <TextInput
        label={words.parameterValue}
        value={value}
        placeholder="Organization/123"
        onChange={({ currentTarget }) => onChange({ name, value: currentTarget.value })}
      />
    </Group>
  )
}

interface PickedProps {
  readonly label: string
  /** Empty: no record yet. */
  readonly reference: string
  readonly targets: readonly string[]
  readonly error?: string | undefined
  readonly onPick: (reference: string) => void
}

/** The name of the chosen record, and a search for another one. */
export function PickedRecord({ label, reference, targets, error, onPick }: PickedProps) {
  return (
    <Stack gap={4} mt="xs">
      <Text size="sm" fw={500}>
        {label}
      </Text>
      <Text size="sm" c="dimmed">
        {reference === '' ? words.noRecord : <RecordTitle reference={reference} />}
      </Text>
      <RecordPicker targets={targets} onPick={({ reference: picked = '' }) => onPick(picked)} />
      {error && (
        <Text size="sm" c="var(--mantine-color-error)" role="alert">
          {error}
        </Text>
      )}
    </Stack>
  )
}

/** Returns the types of records that are values; null for other values. */
async function findTargets({ type, parameter }: ParameterUse): Promise<readonly string[] | null> {
  if (parameter === '_id') return [type]
  if (parameter === '_compartment') return ['Patient']
  const query = new URLSearchParams({ base: type, code: parameter, _count: '1' })
  const found = await medplum.get<Bundle<SearchParameter>>(`fhir/R4/SearchParameter?${query}`)
  const { type: kind, target = [] } = found.entry?.[0]?.resource ?? {}
  return kind === 'reference' ? target : null
}
