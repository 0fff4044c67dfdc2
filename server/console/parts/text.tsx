/** Small texts: a hint and a link. */
import { Anchor, Text } from '@mantine/core'
import { Link } from 'wouter'

interface HintProps {
  readonly children: React.ReactNode
}

export function Hint({ children }: HintProps) {
  return (
    <Text size="sm" c="dimmed">
      {children}
    </Text>
  )
}

interface TextLinkProps extends HintProps {
  readonly href: string
}

export function TextLink({ href, children }: TextLinkProps) {
  return (
    <Anchor component={Link} href={href} size="sm">
      {children}
    </Anchor>
  )
}
