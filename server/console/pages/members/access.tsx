/** Form fields for a member's access. */
import { Button, Fieldset, Group, NativeSelect, Switch, Text } from '@mantine/core'
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
import { type Parameter, ParameterField, parametersFor } from './parameters.tsx'

const words = texts.members

interface Access {
  readonly admin: boolean
  readonly accessPolicy: string
  readonly access: readonly Row[]
}

interface Row {
  readonly policy: string
  readonly parameters: readonly Parameter[]
}

export const noAccess: Access = { admin: false, accessPolicy: '', access: [] }

interface AccessElements {
  readonly admin?: boolean
  readonly accessPolicy?: Reference
  readonly access?: readonly ProjectMembershipAccess[]
}

export function toAccessForm({ admin = false, accessPolicy, access = [] }: AccessElements): Access {
  return {
    admin,
    accessPolicy: accessPolicy?.reference ?? '',
    access: access.map(toRow),
  }
}

function toRow({ policy, parameter = [] }: ProjectMembershipAccess): Row {
  return {
    policy: policy.reference ?? '',
    parameters: parameter.map(({ name, valueString, valueReference }) => ({
      name,
      value: valueReference?.reference ?? valueString ?? '',
    })),
  }
}

/** Keeps the elements of `saved` that the form did not change, with the parts that it does not show. */
export function toAccessElements(form: Access, saved: AccessElements = {}) {
  const { admin, accessPolicy, access } = form
  const rows = new Map(saved.access?.map((one) => [JSON.stringify(toRow(one)), one]))
  const policy =
    saved.accessPolicy?.reference === accessPolicy
      ? saved.accessPolicy
      : { reference: accessPolicy }
  return {
    admin,
    ...(accessPolicy === '' ? {} : { accessPolicy: policy }),
    ...(access.length === 0
      ? {}
      : { access: access.map((row) => rows.get(JSON.stringify(row)) ?? toMembershipAccess(row)) }),
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

export function usePolicies() {
  const path = 'fhir/R4/AccessPolicy?_count=1000&_elements=name,resource,compartment'
  const { data, error } = useGet<Bundle<AccessPolicy>>(path)
  const found = (data?.entry ?? []).flatMap(({ resource }) => resource ?? [])
  const policies = found.map(({ id, name }) => ({
    value: `AccessPolicy/${id}`,
    label: name ?? id ?? '',
  }))
  const findPolicy = (reference: string) =>
    found.find(({ id }) => `AccessPolicy/${id}` === reference)
  return { found, policies, findPolicy, error }
}

export function AccessFields({ fields }: { readonly fields: Fields<Access> }) {
  const { policies, findPolicy, error } = usePolicies()
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
        data={[
          { value: '', label: values.access.length > 0 ? words.noOtherPolicy : words.noPolicy },
          ...policies,
        ]}
        {...fields.text('accessPolicy')}
      />
      {values.access.map((row, place) => (
        <RowFields
          key={names[place]}
          row={row}
          policies={policies}
          findPolicy={findPolicy}
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
            const parameters = parametersFor(findPolicy(policy))
            set({ access: [...values.access, { policy, parameters }] })
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
  readonly findPolicy: (reference: string) => AccessPolicy | undefined
  readonly setRow: (row: Row | undefined) => void
}

function RowFields({ row, policies, findPolicy, setRow }: RowProps) {
  const { policy, parameters } = row
  const { names } = useNames(parameters.length)
  const setParameters = (next: readonly Parameter[]) => setRow({ ...row, parameters: next })
  return (
    <Fieldset legend={words.withParameters}>
      <NativeSelect
        label={words.policy}
        data={[...policies]}
        value={policy}
        onChange={({ currentTarget: { value } }) =>
          setRow({ policy: value, parameters: parametersFor(findPolicy(value), parameters) })
        }
      />
      {parameters.map((parameter, place) => (
        <ParameterField
          key={names[place]}
          policy={findPolicy(policy)}
          parameter={parameter}
          onChange={(next) => setParameters(parameters.with(place, next))}
        />
      ))}
      <Group mt="xs">
        <Button
          variant="default"
          size="xs"
          onClick={() => setParameters([...parameters, { name: '', value: '' }])}
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
