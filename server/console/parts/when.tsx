/** A time in the reader's zone; the tooltip shows it exactly, with the zone. */
import { Text, Tooltip } from '@mantine/core'
import { texts } from '../texts/texts.ts'

const short = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' })
const long = new Intl.DateTimeFormat(undefined, { dateStyle: 'full', timeStyle: 'long' })

export function When({ at }: { readonly at: string | number | undefined }) {
  const date = new Date(at ?? Number.NaN)
  if (Number.isNaN(date.getTime())) return <>{at ?? texts.common.never}</>
  return (
    <Tooltip label={long.format(date)}>
      <Text component="time" dateTime={date.toISOString()} inherit>
        {short.format(date)}
      </Text>
    </Tooltip>
  )
}
