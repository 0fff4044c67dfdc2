/** The form of one policy entry. */
import { Button, Fieldset, Group, MultiSelect, NativeSelect, Select, Text } from '@mantine/core'
import type { AccessPolicyResource } from '@medplum/fhirtypes'
import { withElements, withType } from '../../client/policies.ts'
import { useTypes } from '../../client/types.ts'
import { fill, texts } from '../../texts/texts.ts'
import { useStructure } from '../resources/elements.ts'
import { CriteriaFields } from './criteria.tsx'

const words = texts.policies
const INTERACTIONS = ['read', 'vread', 'search', 'history', 'create', 'update', 'delete'] as const
const RIGHTS = ['write', 'read', 'chosen'] as const

type Rights = (typeof RIGHTS)[number]

interface Props {
  /** 0-based. */
  readonly place: number
  readonly count: number
  readonly entry: AccessPolicyResource
  readonly parameters: readonly string[]
  readonly onChange: (entry: AccessPolicyResource) => void
  readonly onRemove: () => void
  readonly onMove: (place: number) => void
}

export function EntryFields(props: Props) {
  const { place, count, entry, parameters, onChange, onRemove, onMove } = props
  const type = entry.resourceType ?? ''
  const name = fill(words.entry, { number: place + 1, type: type === '*' ? words.anyType : type })
  return (
    <Fieldset legend={name} data-entry={place}>
      <TypeField type={type} onChange={(next) => onChange(withType(entry, next))} />
      {type !== '' && (
        <>
          <RightsFields entry={entry} onChange={onChange} />
          <CriteriaFields
            type={type}
            criteria={entry.criteria}
            parameters={parameters}
            onChange={(criteria) => onChange(withElements(entry, { criteria }))}
          />
          <ElementFields entry={entry} onChange={onChange} />
          {(entry.writeConstraint || entry.compartment) && (
            <Text size="sm" c="dimmed" mt="xs">
              {words.moreInJson}
            </Text>
          )}
        </>
      )}
      <Group mt="sm" gap="xs">
        <Button
          variant="default"
          size="xs"
          disabled={place === 0}
          onClick={() => onMove(place - 1)}
          aria-label={fill(words.moveUpOf, { name })}
        >
          {words.moveUp}
        </Button>
        <Button
          variant="default"
          size="xs"
          disabled={place === count - 1}
          onClick={() => onMove(place + 1)}
          aria-label={fill(words.moveDownOf, { name })}
        >
          {words.moveDown}
        </Button>
        <Button variant="subtle" color="red" size="xs" onClick={onRemove}>
          {words.removeEntry}
        </Button>
      </Group>
    </Fieldset>
  )
}

interface TypeProps {
  readonly type: string
  readonly onChange: (type: string) => void
}

function TypeField({ type, onChange }: TypeProps) {
  const { data = [] } = useTypes()
  const known = [...new Set([...data.map(({ type: one = '' }) => one), type])].filter(
    (one) => one !== '' && one !== '*',
  )
  return (
    <Select
      required
      label={words.type}
      searchable
      data={[{ value: '*', label: words.anyType }, ...known]}
      value={type === '' ? null : type}
      allowDeselect={false}
      onChange={(next) => next && onChange(next)}
      data-type
    />
  )
}

interface EntryProps {
  readonly entry: AccessPolicyResource
  readonly onChange: (entry: AccessPolicyResource) => void
}

function RightsFields({ entry, onChange }: EntryProps) {
  const { interaction } = entry
  const rights: Rights = interaction ? 'chosen' : entry.readonly === true ? 'read' : 'write'
  const setRights = (next: string) =>
    onChange(
      withElements(entry, {
        readonly: next === 'read' ? true : undefined,
        interaction: next === 'chosen' ? ['read', 'search'] : undefined,
      }),
    )
  return (
    <Group align="flex-start" my="xs">
      <NativeSelect
        label={words.rights}
        data={RIGHTS.map((value) => ({ value, label: words.rightsOf[value] }))}
        value={rights}
        onChange={({ currentTarget }) => setRights(currentTarget.value)}
      />
      {interaction && (
        <MultiSelect
          label={words.interactions}
          data={INTERACTIONS.map((value) => ({ value, label: words.interactionOf[value] }))}
          value={interaction}
          // An empty list would be removed, which would allow everything.
          onChange={(next) =>
            next.length > 0 &&
            onChange(withElements(entry, { interaction: next as typeof interaction }))
          }
          style={{ flex: 1 }}
          miw={220}
        />
      )}
    </Group>
  )
}

function ElementFields({ entry, onChange }: EntryProps) {
  const { resourceType: type = '', hiddenFields = [], readonlyFields = [] } = entry
  const { data = [] } = useStructure(type === '*' ? 'DomainResource' : type)
  const own = data.flatMap(({ path = '' }) => path.split(/\.(.*)/s)[1] ?? [])
  const paths = own.filter((path) => !/(^|\.)(id|meta|implicitRules)$/.test(path))
  const field = (name: 'hiddenFields' | 'readonlyFields', value: readonly string[]) => (
    <MultiSelect
      label={words[name]}
      description={words[`${name}Hint`]}
      searchable
      data={[...new Set([...paths, ...value])]}
      value={[...value]}
      onChange={(next) => onChange(withElements(entry, { [name]: next }))}
      limit={100}
      nothingFoundMessage={words.noElement}
      mt="xs"
      data-elements={name}
    />
  )
  return (
    <>
      {field('hiddenFields', hiddenFields)}
      {field('readonlyFields', readonlyFields)}
    </>
  )
}
