/** Parts of a record that neither the summary nor the form shows. */
import { Text } from '@mantine/core'
import { isObject } from '@medplum/core'
import type { Resource } from '@medplum/fhirtypes'
import { Link } from 'wouter'
import { fill, texts } from '../../texts/texts.ts'

const words = texts.record
const PARTS = ['modifierExtension', 'extension', 'contained'] as const
/** Written by the service and by programs. */
const GENERATED = ['meta', 'text']

/** A line with a link to the JSON, which has every part of the record. */
export function HiddenParts({ record }: { readonly record: Resource }) {
  const { resourceType, id, ...elements } = record
  const parts = hiddenParts(elements)
  if (parts.length === 0) return null
  const [before, after] = words.hiddenParts.split('{json}')
  const list = parts.map((part) => words.parts[part]).join(', ')
  return (
    <Text size="sm" data-hidden-parts>
      {fill(before ?? '', { list })}
      <Link href={`/resources/${resourceType}/${id}/json`}>{words.tabs.json}</Link>
      {after}
    </Text>
  )
}

function hiddenParts(record: object): readonly (typeof PARTS)[number][] {
  const names = new Set(listNames(record))
  return PARTS.filter((part) => names.has(part))
}

/** Names of the parts at any depth; those inside of a part are not listed. */
function listNames(value: unknown): readonly string[] {
  if (Array.isArray(value)) return value.flatMap(listNames)
  if (!isObject(value)) return []
  return Object.entries(value).flatMap(([name, own]) => {
    if (GENERATED.includes(name)) return []
    return PARTS.some((part) => part === name) ? [name] : listNames(own)
  })
}
