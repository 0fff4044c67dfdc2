/** Says that there is nothing, and what to do next. */
import { Paper, Stack, Text } from '@mantine/core'
import { texts } from '../texts/texts.ts'

interface Props {
  readonly title: string
  readonly hint?: React.ReactNode
  readonly action?: React.ReactNode
}

export function Empty({ title, hint, action }: Props) {
  return (
    <Paper withBorder p="xl">
      <Stack align="center" gap="xs">
        <Text fw={600} ta="center">
          {title}
        </Text>
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

/** Stands where a page is not for the person; the service would refuse what it asks for. */
export function NotYours() {
  return <Empty title={texts.app.notYours} hint={texts.app.notYoursHint} />
}
