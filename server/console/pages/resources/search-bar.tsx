/** The conditions of a search: each can be taken away, and the type's own parameters are offered for a new one. */
import { Button, Group, Pill, Select, TextInput } from '@mantine/core'
import { useForm } from '@mantine/form'
import type { CapabilityStatementRestResourceSearchParam } from '@medplum/fhirtypes'
import { texts } from '../../texts/texts.ts'

const words = texts.resources.search
/** Marks of a page, and not of a search. */
const HIDDEN = ['_cursor', '_sort', '_count', '_total']

interface Props {
  readonly query: URLSearchParams
  readonly parameters: readonly CapabilityStatementRestResourceSearchParam[]
  readonly go: (query: URLSearchParams) => void
}

export function SearchBar({ query, parameters, go }: Props) {
  const form = useForm({
    initialValues: { name: '', value: '' },
    validate: {
      name: (name) => (name ? null : words.nameMissing),
      value: (value) => (value.trim() === '' ? words.valueMissing : null),
    },
  })
  const shown = [...query].filter(([name]) => !HIDDEN.includes(name))
  const chosen = parameters.find(({ name }) => name === form.values.name)
  const add = form.onSubmit(({ name, value }) => {
    const next = new URLSearchParams(query)
    next.delete('_cursor')
    next.append(name, value.trim())
    form.reset()
    go(next)
  })
  const remove = (name: string, value: string) => {
    const next = new URLSearchParams(query)
    next.delete('_cursor')
    next.delete(name, value)
    go(next)
  }
  return (
    <form onSubmit={add}>
      <Group align="flex-start">
        <Select
          aria-label={words.parameter}
          placeholder={words.parameter}
          data={parameters.map(({ name }) => name ?? '')}
          searchable
          clearable
          {...form.getInputProps('name')}
        />
        <TextInput
          aria-label={words.value}
          placeholder={words[hintOf(chosen?.type)]}
          {...form.getInputProps('value')}
        />
        <Button type="submit">{words.add}</Button>
      </Group>
      {shown.length > 0 && (
        <Group gap="xs" mt="xs">
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
      )}
    </form>
  )
}

function hintOf(type: string | undefined): 'value' | 'date' | 'token' | 'reference' {
  return type === 'date' || type === 'token' || type === 'reference' ? type : 'value'
}
