/** Outcome of a run, or state of a bot or job, as a coloured word. */
import { Badge } from '@mantine/core'
import { fill, texts } from '../texts/texts.ts'

const GREEN = ['ok', 'deployed', 'completed', 'active', 'finished']
const GREY = ['empty', 'accepted', 'cancelled', 'off', 'running']

export function Outcome({ status }: { readonly status: string }) {
  const color = GREEN.includes(status) ? 'green' : GREY.includes(status) ? 'gray' : 'red'
  return <Dot color={color}>{status}</Dot>
}

/** A run is ok or failed. Causes other than an error of the bot are named, such as a timeout. */
export function runOutcome(status: string): string {
  const { ok, failed, failedBy } = texts.bots.outcomes
  if (status === 'ok') return ok
  return status === 'thrown' || status === 'returned' ? failed : fill(failedBy, { cause: status })
}

export function RunOutcome({ status }: { readonly status: string }) {
  return <Dot color={status === 'ok' ? 'green' : 'red'}>{runOutcome(status)}</Dot>
}

interface DotProps {
  readonly color: string
  readonly role?: 'status'
  readonly children: React.ReactNode
}

/** A word with a dot of a color. */
export function Dot(props: DotProps) {
  return <Badge variant="dot" tt="none" {...props} />
}
