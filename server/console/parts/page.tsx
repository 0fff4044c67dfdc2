/** The frame of every page: its title in the window and on the page, its buttons, its content. */
import { Group, Stack, Text, Title } from '@mantine/core'
import { useDocumentTitle } from '@mantine/hooks'

interface Props {
  readonly title: string
  readonly hint?: React.ReactNode
  readonly actions?: React.ReactNode
  readonly children: React.ReactNode
}

const product = document.body.dataset.product ?? ''

export function Page({ title, hint, actions, children }: Props) {
  useDocumentTitle(`${title} – ${product}`)
  return (
    <Stack gap="md">
      <Group justify="space-between" align="flex-start">
        <div>
          <Title order={1} size="h2" id="title" tabIndex={-1}>
            {title}
          </Title>
          {hint && (
            <Text c="dimmed" size="sm" component="div">
              {hint}
            </Text>
          )}
        </div>
        {actions && <Group gap="xs">{actions}</Group>}
      </Group>
      {children}
    </Stack>
  )
}
