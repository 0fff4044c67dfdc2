/** Searches that the person keeps under a name, with their columns. They are stored in this browser. */
import { ActionIcon, Button, Group, Menu, Text, TextInput } from '@mantine/core'
import { useLocalStorage } from '@mantine/hooks'
import { useState } from 'react'
import { useMe } from '../../client/session.ts'
import { fill, texts } from '../../texts/texts.ts'

const words = texts.views

interface View {
  readonly name: string
  readonly search: string
  readonly columns: readonly string[]
}

interface Props {
  readonly type: string
  readonly search: string
  readonly columns: readonly string[]
  readonly open: (view: View) => void
}

export function SavedViews({ type, search, columns, open }: Props) {
  const { project } = useMe()
  const [views, setViews] = useLocalStorage<readonly View[]>({
    key: `botica-views-${project.id}-${type}`,
    defaultValue: [],
    getInitialValueInEffect: false,
  })
  const [name, setName] = useState('')
  const others = (taken: string) => views.filter((view) => view.name !== taken)
  const keep = () => {
    setViews([...others(name.trim()), { name: name.trim(), search: withoutPage(search), columns }])
    setName('')
  }
  return (
    <Menu trapFocus={false}>
      <Menu.Target>
        <Button variant="default">{words.title}</Button>
      </Menu.Target>
      <Menu.Dropdown>
        {views.length === 0 && <Menu.Label>{words.none}</Menu.Label>}
        {views.map((view) => (
          <Group key={view.name} gap={0} wrap="nowrap">
            <Menu.Item onClick={() => open(view)}>{view.name}</Menu.Item>
            <ActionIcon
              variant="subtle"
              color="gray"
              aria-label={fill(words.remove, { name: view.name })}
              onClick={() => setViews(others(view.name))}
            >
              ×
            </ActionIcon>
          </Group>
        ))}
        <Menu.Divider />
        <form
          onSubmit={(event) => {
            event.preventDefault()
            if (name.trim() !== '') keep()
          }}
        >
          <Group p="xs" gap="xs" wrap="nowrap">
            <TextInput
              aria-label={words.name}
              placeholder={words.name}
              value={name}
              onChange={({ currentTarget }) => setName(currentTarget.value)}
              // Letters are typed here; the menu would jump to its items.
              onKeyDown={(event) => event.stopPropagation()}
            />
            <Button type="submit" variant="default">
              {words.keep}
            </Button>
          </Group>
          <Text size="xs" c="dimmed" px="xs">
            {words.hint}
          </Text>
        </form>
      </Menu.Dropdown>
    </Menu>
  )
}

function withoutPage(search: string): string {
  const query = new URLSearchParams(search)
  query.delete('_cursor')
  return query.toString()
}
