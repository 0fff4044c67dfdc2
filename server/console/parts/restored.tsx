/** Says that a page shows what was typed before a reload or a new sign-in. */
import { Alert, Button } from '@mantine/core'
import type { Draft } from '../drafts.ts'
import { texts } from '../texts/texts.ts'

interface Props {
  readonly draft: Pick<Draft<unknown>, 'isRestored' | 'discard'>
}

export function Restored({ draft: { isRestored, discard } }: Props) {
  if (!isRestored) return null
  return (
    <Alert color="yellow" variant="light" role="status">
      {texts.common.restored}{' '}
      <Button size="compact-xs" variant="default" onClick={discard}>
        {texts.common.discard}
      </Button>
    </Alert>
  )
}
