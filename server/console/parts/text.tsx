/** Small texts: a hint, a link, and a state. */
import { Anchor, Badge, Text } from '@mantine/core'
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

interface DotProps extends HintProps {
  readonly color: string
  readonly role?: 'status'
}

/** A word with a dot of a color. */
export function Dot(props: DotProps) {
  return <Badge variant="dot" tt="none" {...props} />
}
