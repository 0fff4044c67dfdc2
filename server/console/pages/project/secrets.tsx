/** Secrets of bots, with masked values; a new value replaces the old. */
import { Button, Group, PasswordInput, Stack, Text, TextInput } from '@mantine/core'
import type { ProjectSetting } from '@medplum/fhirtypes'
import { useState } from 'react'
import { useSend } from '../../client/api.ts'
import { Problem } from '../../client/problem.tsx'
import { Confirm } from '../../parts/action.tsx'
import { Empty } from '../../parts/loaded.tsx'
import { DataTable } from '../../parts/table.tsx'
import { Hint } from '../../parts/text.tsx'
import words from '../../texts/project.json' with { type: 'json' }
import { fill, texts } from '../../texts/texts.ts'
import { changeList, withItems } from './lists.ts'

interface Props {
  readonly address: string
  readonly secrets: readonly ProjectSetting[]
}

interface Change {
  readonly name: string
  /** Absent to delete the secret. */
  readonly next?: readonly ProjectSetting[]
}

export function Secrets({ address, secrets }: Props) {
  const write = useSend<Change>({
    send: ({ name, next = [] }) =>
      changeList(address, 'secret', (all) => withItems(all, [name], next)),
    done: texts.common.saved,
  })
  return (
    <Stack>
      <Hint>{words.secretsHint}</Hint>
      <DataTable
        label={words.tabs.secrets}
        rows={secrets}
        rowKey={({ name }) => name}
        empty={<Empty title={words.noSecrets} hint={words.noSecretsHint} />}
        columns={[
          { name: words.name, cell: ({ name }) => name },
          { name: words.value, cell: () => '••••••••' },
          {
            name: words.actions,
            cell: ({ name }) => (
              <Confirm
                label={texts.common.delete}
                confirm={texts.common.delete}
                onConfirm={() => write.mutate({ name })}
              >
                <Text size="sm">{fill(words.deleteSecret, { name })}</Text>
              </Confirm>
            ),
          },
        ]}
      />
      <Add write={(secret) => write.mutateAsync({ name: secret.name, next: [secret] })} />
    </Stack>
  )
}

/** Not the form with drafts: secrets are never stored in the browser. */
function Add({ write }: { readonly write: (secret: ProjectSetting) => Promise<unknown> }) {
  const [name, setName] = useState('')
  const [value, setValue] = useState('')
  const [error, setError] = useState<unknown>()
  const submit = async () => {
    setError(undefined)
    try {
      await write({ name, valueString: value })
      setName('')
      setValue('')
    } catch (problem) {
      setError(problem)
    }
  }
  return (
    <form
      autoComplete="off"
      onSubmit={(event) => {
        event.preventDefault()
        void submit()
      }}
    >
      <Stack>
        <Text fw={600}>{words.addSecret}</Text>
        <Group grow align="start">
          <TextInput
            name="name"
            label={words.name}
            value={name}
            error={error !== undefined && name === '' ? words.nameMissing : undefined}
            onChange={({ currentTarget }) => setName(currentTarget.value)}
          />
          <PasswordInput
            name="value"
            label={words.value}
            autoComplete="new-password"
            visibilityToggleButtonProps={{ 'aria-label': words.showValue }}
            value={value}
            onChange={({ currentTarget }) => setValue(currentTarget.value)}
          />
        </Group>
        <Problem error={error} />
        <Group>
          <Button type="submit">{texts.common.save}</Button>
        </Group>
      </Stack>
    </form>
  )
}
