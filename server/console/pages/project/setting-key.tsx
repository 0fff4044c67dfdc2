/** A part of the pages of a project that several forms have. */
import { Text } from '@mantine/core'

/** The name of a setting in the API, in small print. */
export function SettingKey({ name }: { readonly name: string }) {
  return (
    <Text component="code" size="xs" c="dimmed" display="block">
      {name}
    </Text>
  )
}
