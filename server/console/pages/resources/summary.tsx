/** A record to read: its elements in the order of the definition, with the values that people know first. */
import { Button, Card, Stack, Table, Text } from '@mantine/core'
import { isObject } from '@medplum/core'
import type { Resource } from '@medplum/fhirtypes'
import { Link } from 'wouter'
import { mayDo, useMe } from '../../client/session.ts'
import { readElement } from '../../client/titles.ts'
import { Loaded } from '../../parts/loaded.tsx'
import { texts } from '../../texts/texts.ts'
import { type Element, elementsBelow, isPrimitive, useStructure } from './elements.ts'
import { HiddenParts } from './hidden.tsx'
import { PatientSummary } from './patient.tsx'
import { absentReason, Value } from './values.tsx'

const words = texts.record

interface Props {
  readonly record: Resource
}

export function Summary({ record }: Props) {
  const me = useMe()
  const { resourceType, id } = record
  return (
    <Stack>
      {mayDo(me, resourceType, 'update') && (
        <Button component={Link} href={`/resources/${resourceType}/${id}/form`} w="fit-content">
          {words.edit}
        </Button>
      )}
      {record.resourceType === 'Patient' && <PatientSummary patient={record} />}
      <HiddenParts record={record} />
      <Card withBorder>
        <Elements type={resourceType} path={resourceType} value={{ ...record }} />
      </Card>
    </Stack>
  )
}

interface ElementsProps {
  /** Type whose definition has the elements. */
  readonly type: string
  readonly path: string
  readonly value: Readonly<Record<string, unknown>>
}

function Elements({ type, path, value }: ElementsProps) {
  const structure = useStructure(type)
  return (
    <Loaded query={structure}>
      {(definitions) => (
        <Table verticalSpacing="xs" layout="fixed" aria-label={path}>
          <Table.Tbody>
            <ModifierExtensions value={value} />
            {elementsBelow(definitions, path)
              .filter(({ name }) => name in value || absentReason(value, name) !== undefined)
              .map((element) => (
                <Table.Tr key={element.name}>
                  <Table.Th w={{ base: '35%', sm: 200 }} scope="row">
                    {formatElementName(element.name)}
                  </Table.Th>
                  <Table.Td style={{ overflowWrap: 'anywhere' }}>
                    {absentReason(value, element.name)}
                    <ElementValue element={element} type={type} value={value[element.name]} />
                  </Table.Td>
                </Table.Tr>
              ))}
          </Table.Tbody>
        </Table>
      )}
    </Loaded>
  )
}

/** May negate the record or change its meaning: https://hl7.org/fhir/R4/extensibility.html#modifierExtension */
function ModifierExtensions({ value }: Pick<ElementsProps, 'value'>) {
  const { modifierExtension } = value
  if (!Array.isArray(modifierExtension)) return null
  return modifierExtension.filter(isObject).map((one) => (
    <Table.Tr key={JSON.stringify(one)}>
      <Table.Th scope="row">{words.modifierExtension}</Table.Th>
      <Table.Td style={{ overflowWrap: 'anywhere' }}>
        {String(one.url)} <Value value={readElement(one, 'value[x]')} />
      </Table.Td>
    </Table.Tr>
  ))
}

interface ElementValueProps {
  readonly element: Element
  readonly type: string
  readonly value: unknown
}

function ElementValue({ element, type, value }: ElementValueProps) {
  const items: readonly unknown[] = Array.isArray(value) ? value : [value]
  const [own = ''] = element.types
  const isNested = own === 'BackboneElement' || own === 'Element'
  if (isPrimitive(element)) return <Value value={value} most={Number.POSITIVE_INFINITY} />
  return (
    <Stack gap={4}>
      {items.map((item, place) => (
        // The page is read: items keep their places.
        // biome-ignore lint/suspicious/noArrayIndexKey: a list that never changes.
        <div key={place}>
          {isNested && isObject(item) ? (
            <Elements type={type} path={element.path} value={item} />
          ) : (
            <Described type={own} value={item} />
          )}
        </div>
      ))}
    </Stack>
  )
}

interface DescribedProps {
  readonly type: string
  readonly value: unknown
}

/** A value with its use or system in small print, such as "home" or "http://loinc.org 8302-2". */
function Described({ type, value }: DescribedProps) {
  if (!isObject(value)) return <Value value={value} />
  const { use, system, coding } = value
  const codes = Array.isArray(coding) ? coding.filter(isObject) : []
  const notes = [
    use,
    type === 'Identifier' || type === 'ContactPoint' || type === 'Coding' ? system : undefined,
    ...codes.map((code) => [code.system, code.code].filter(isText).join(' ')),
  ]
  return (
    <>
      <Value value={value} />
      <Text size="xs" c="dimmed" span ml="xs">
        {notes.filter(isText).join(' · ')}
      </Text>
    </>
  )
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && value !== ''
}

/** "birthDate" as "Birth date". */
function formatElementName(name: string): string {
  const spaced = name.replace(/([a-z])([A-Z])/g, (_, last: string, next: string) => {
    return `${last} ${next.toLowerCase()}`
  })
  return spaced.charAt(0).toUpperCase() + spaced.slice(1)
}
