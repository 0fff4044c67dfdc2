/** Says that there is nothing, and what to do next. */
import { Paper, Stack, Text } from '@mantine/core'

interface Props {
  readonly title: string
  readonly hint?: React.ReactNode
  readonly action?: React.ReactNode
}

export function Empty({ title, hint, action }: Props) {
  return (
    <Paper withBorder p="xl">
      <Stack align="center" gap="xs">
        <Text fw={600}>{title}</Text>
        {hint && (
          <Text c="dimmed" size="sm" ta="center">
            {hint}
          </Text>
        )}
        {action}
      </Stack>
    </Paper>
  )
}
