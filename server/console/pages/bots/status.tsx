/** Outcome of a run, or state of a bot or job, as a coloured word. */
import { Badge } from '@mantine/core'

const GREEN = ['ok', 'deployed', 'completed', 'active', 'finished']
const GREY = ['empty', 'accepted', 'cancelled', 'off', 'running']

interface Props {
  readonly status: string
}

export function Outcome({ status }: Props) {
  const color = GREEN.includes(status) ? 'green' : GREY.includes(status) ? 'gray' : 'red'
  return (
    <Badge color={color} variant="dot" tt="none">
      {status}
    </Badge>
  )
}
