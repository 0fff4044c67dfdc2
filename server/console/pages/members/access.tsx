/** Form fields for a member's access. */
import { Button, Fieldset, Group, NativeSelect, Switch, Text, TextInput } from '@mantine/core'
import type {
  AccessPolicy,
  Bundle,
  ProjectMembershipAccess,
  ProjectMembershipAccessParameter,
  Reference,
} from '@medplum/fhirtypes'
import { useGet } from '../../client/api.ts'
import { Problem } from '../../client/problem.tsx'
import { type Fields, useNames } from '../../parts/form.tsx'
import { texts } from '../../texts/texts.ts'

const words = texts.members

export interface Access {
  readonly admin: boolean
  readonly accessPolicy: string
  readonly access: readonly Row[]
}

interface Row {
  readonly policy: string
  readonly parameters: readonly Parameter[]
}

interface Parameter {
  readonly name: string
  readonly value: string
}

export const noAccess: Access = { admin: false, accessPolicy: '', access: [] }

export function toAccessForm(member: {
  readonly admin?: boolean
  readonly accessPolicy?: Reference
  readonly access?: readonly ProjectMembershipAccess[]
}): Access {
  const { admin = false, accessPolicy, access = [] } = member
  return {
    admin,
    accessPolicy: accessPolicy?.reference ?? '',
    access: access.map(({ policy, parameter = [] }) => ({
      policy: policy.reference ?? '',
      parameters: parameter.map(({ name, valueString, valueReference }) => ({
        name,
        value: valueReference?.reference ?? valueString ?? '',
      })),
    })),
  }
}

export function toAccessElements({ admin, accessPolicy, access }: Access) {
  return {
    admin,
    ...(accessPolicy === '' ? {} : { accessPolicy: { reference: accessPolicy } }),
    ...(access.length === 0 ? {} : { access: access.map(toMembershipAccess) }),
  }
}

function toMembershipAccess({ policy, parameters }: Row): ProjectMembershipAccess {
  return {
    policy: { reference: policy },
    ...(parameters.length === 0 ? {} : { parameter: parameters.map(toAccessParameter) }),
  }
}

function toAccessParameter({ name, value }: Parameter): ProjectMembershipAccessParameter {
  const isReference = /^[A-Z][A-Za-z]+\/[A-Za-z0-9.-]{1,64}$/.test(value)
  return isReference ? { name, valueReference: { reference: value } } : { name, valueString: value }
}

interface Props {
  readonly fields: Fields<Access>
}

export function usePolicies() {
  const path = 'fhir/R4/AccessPolicy?_count=1000&_elements=name'
  const { data, error } = useGet<Bundle<AccessPolicy>>(path)
  const policies = (data?.entry ?? []).map(({ resource }) => ({
    value: `AccessPolicy/${resource?.id}`,
    label: resource?.name ?? resource?.id ?? '',
  }))
  return { policies, error }
}

export function AccessFields({ fields }: Props) {
  const { policies, error } = usePolicies()
  const { values, set } = fields
  const { names, drop } = useNames(values.access.length)
  const setRow = (place: number, row: Row | undefined) => {
    if (row === undefined) drop(place)
    set({ access: row ? values.access.with(place, row) : values.access.toSpliced(place, 1) })
  }
  return (
    <>
      <Problem error={error} />
      <Switch label={words.isAdmin} description={words.isAdminHint} {...fields.flag('admin')} />
      <NativeSelect
        label={words.policy}
        description={words.policyHint}
        data={[{ value: '', label: words.noPolicy }, ...policies]}
        {...fields.text('accessPolicy')}
      />
      {values.access.map((row, place) => (
        <RowFields
          key={names[place]}
          row={row}
          policies={policies}
          setRow={(next) => setRow(place, next)}
        />
      ))}
      {fields.error('access') && (
        <Text c="red" size="sm" role="alert">
          {fields.error('access')}
        </Text>
      )}
      <Group>
        <Button
          variant="default"
          size="xs"
          disabled={policies.length === 0}
          onClick={() => {
            const policy = policies[0]?.value ?? ''
            set({ access: [...values.access, { policy, parameters: [{ name: '', value: '' }] }] })
          }}
        >
          {words.addPolicy}
        </Button>
      </Group>
    </>
  )
}

interface RowProps {
  readonly row: Row
  readonly policies: readonly { readonly value: string; readonly label: string }[]
  readonly setRow: (row: Row | undefined) => void
}

function RowFields({ row, policies, setRow }: RowProps) {
  const { policy, parameters } = row
  const { names } = useNames(parameters.length)
  const change = (place: number, part: Partial<Parameter>) => {
    const parameter = { name: '', value: '', ...parameters[place], ...part }
    setRow({ ...row, parameters: parameters.with(place, parameter) })
  }
  return (
    <Fieldset legend={words.withParameters}>
      <NativeSelect
        label={words.policy}
        data={[...policies]}
        value={policy}
        onChange={({ currentTarget: { value } }) => setRow({ ...row, policy: value })}
      />
      {parameters.map(({ name, value }, place) => (
        <Group key={names[place]} grow mt="xs" align="end">
          <TextInput
            label={words.parameter}
            value={name}
            onChange={({ currentTarget }) => change(place, { name: currentTarget.value })}
          />
          <TextInput
            label={words.parameterValue}
            value={value}
            placeholder="Organization/123"
            onChange={({ currentTarget }) => change(place, { value: currentTarget.value })}
          />
        </Group>
      ))}
      <Group mt="xs">
        <Button
          variant="default"
          size="xs"
          onClick={() => setRow({ ...row, parameters: [...parameters, { name: '', value: '' }] })}
        >
          {words.addParameter}
        </Button>
        <Button variant="subtle" color="red" size="xs" onClick={() => setRow(undefined)}>
          {words.removePolicy}
        </Button>
      </Group>
    </Fieldset>
  )
}
