/** Conditions of a search: a form that adds one, and those in force, which can be removed. */
import { Button, Group, NativeSelect, Pill, Select, TextInput } from '@mantine/core'
import { useForm } from '@mantine/form'
import type { CapabilityStatementRestResourceSearchParam } from '@medplum/fhirtypes'
import { hasCompleteDates, TimeInput } from '../../parts/time-input.tsx'
import { texts } from '../../texts/texts.ts'

const words = texts.resources.search
const HIDDEN = ['_cursor', '_sort', '_count', '_total']

interface ConditionsProps {
  readonly query: URLSearchParams
  readonly go: (query: URLSearchParams) => void
}

interface SearchProps extends ConditionsProps {
  readonly parameters: readonly CapabilityStatementRestResourceSearchParam[]
}

/** Suggests the parameters of the type; the value of a date is picked. */
export function SearchBar({ query, parameters, go }: SearchProps) {
  const form = useForm({
    initialValues: { name: '', comparator: 'eq', value: '' },
    validate: {
      name: (name) => (name ? null : words.nameMissing),
      value: (value) => (value.trim() === '' ? words.valueMissing : null),
    },
  })
  const type = parameters.find(({ name }) => name === form.values.name)?.type
  const add = form.onSubmit(({ name, comparator, value }) => {
    const next = new URLSearchParams(query)
    next.delete('_cursor')
    next.append(name, type === 'date' ? `${comparator}${value}` : value.trim())
    form.reset()
    go(next)
  })
  return (
    <form
      noValidate
      onSubmit={(event) => {
        if (hasCompleteDates(event.currentTarget)) add(event)
        else event.preventDefault()
      }}
    >
      <Group align="flex-start">
        <Select
          aria-label={words.parameter}
          placeholder={words.parameter}
          data={parameters.map(({ name }) => name ?? '')}
          searchable
          clearable
          {...form.getInputProps('name')}
          onChange={(name) => form.setValues({ name: name ?? '', comparator: 'eq', value: '' })}
        />
        {type === 'date' ? (
          <>
            <NativeSelect
              aria-label={words.comparator}
              data={Object.entries(words.comparators).map(([value, label]) => ({ value, label }))}
              {...form.getInputProps('comparator')}
            />
            <TimeInput type="date" aria-label={words.value} {...form.getInputProps('value')} />
          </>
        ) : (
          <TextInput
            aria-label={words.value}
            placeholder={words[inputHint(type)]}
            {...form.getInputProps('value')}
          />
        )}
        <Button type="submit">{words.add}</Button>
      </Group>
    </form>
  )
}

export function Conditions({ query, go }: ConditionsProps) {
  const shown = [...query].filter(([name]) => !HIDDEN.includes(name))
  if (shown.length === 0) return null
  const remove = (name: string, value: string) => {
    const next = new URLSearchParams(query)
    next.delete('_cursor')
    next.delete(name, value)
    go(next)
  }
  return (
    <Group gap="xs">
      {shown.map(([name, value]) => (
        <Pill
          key={`${name}=${value}`}
          size="md"
          withRemoveButton
          onRemove={() => remove(name, value)}
          removeButtonProps={{ 'aria-label': words.remove, 'aria-hidden': false, tabIndex: 0 }}
        >
          {name}={value}
        </Pill>
      ))}
    </Group>
  )
}

function inputHint(type: string | undefined): 'value' | 'token' | 'reference' {
  return type === 'token' || type === 'reference' ? type : 'value'
}
