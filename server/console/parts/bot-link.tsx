/** A link to the page of a bot, by its name. */
import { Anchor } from '@mantine/core'
import { Link } from 'wouter'
import { useTitle } from '../client/titles.ts'

interface BotLinkProps {
  /** `Bot/<id>` */
  readonly reference: string
}

export function BotLink({ reference }: BotLinkProps) {
  const [, id] = reference.split('/')
  return (
    <Anchor component={Link} href={`/bots/${id}`} size="sm">
      {useTitle(reference)}
    </Anchor>
  )
}
