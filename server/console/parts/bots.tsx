/** Bots by their names: a link to one, and a choice of one. */
import { Select, type SelectProps } from '@mantine/core'
import type { Bot, Bundle } from '@medplum/fhirtypes'
import { useGet } from '../client/api.ts'
import { useTitle } from '../client/titles.ts'
import { TextLink } from './text.tsx'

interface BotLinkProps {
  /** `Bot/<id>` */
  readonly reference: string
}

export function BotLink({ reference }: BotLinkProps) {
  const [, id] = reference.split('/')
  return <TextLink href={`/bots/${id}`}>{useTitle(reference)}</TextLink>
}

/** The value is the id of the bot. */
export function BotSelect(props: Omit<SelectProps, 'data'>) {
  const { data } = useGet<Bundle<Bot>>('fhir/R4/Bot?_count=1000&_sort=name&_elements=name')
  const bots = (data?.entry ?? []).flatMap(({ resource }) => resource ?? [])
  const choices = bots.map(({ id = '', name = id }) => ({ value: id, label: name }))
  return <Select data={choices} searchable {...props} />
}
