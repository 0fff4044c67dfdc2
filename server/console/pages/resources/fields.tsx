/** The fields of an object: those it has, those it must have, and a choice of the others. */
import { Button, Fieldset, Group, Select, Stack, Textarea, TextInput } from '@mantine/core'
import { isObject } from '@medplum/core'
import type { Bundle, ElementDefinition, StructureDefinition, ValueSet } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { useNames } from '../../parts/form.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { medplum } from '../../session.ts'
import { texts } from '../../texts/texts.ts'

const words = texts.record
/** Fields lie deep in each other, and a phone is narrow. */
const PADDING = { base: 6, sm: 'md' } as const

export type Values = Readonly<Record<string, unknown>>

interface FieldsProps {
  /** Its definition has the elements. */
  readonly type: string
  readonly path: string
  readonly value: Values
  readonly onChange: (value: Values) => void
}

export function Fields({ type, path, value, onChange }: FieldsProps) {
  const structure = useStructure(type)
  const [opened, setOpened] = useState<readonly string[]>([])
  const change = (name: string, next: unknown) => {
    const { [name]: _, ...others } = value
    onChange(isEmpty(next) ? others : { ...others, [name]: next })
  }
  return (
    <Loaded query={structure}>
      {(definitions) => {
        const elements = elementsBelow(definitions, path).flatMap(choicesOf)
        const isShown = ({ name, isRequired }: Element) =>
          name in value || opened.includes(name) || (isRequired && !name.includes(':'))
        return (
          <Stack gap="sm">
            {elements.filter(isShown).map((element) => (
              <Field
                key={element.name}
                element={element}
                type={type}
                value={value[element.name]}
                onChange={(next) => change(element.name, next)}
              />
            ))}
            <Select
              className="add"
              aria-label={words.add}
              placeholder={words.add}
              searchable
              value={null}
              data={elements.filter((element) => !isShown(element)).map(({ name }) => name)}
              onChange={(name) => name && setOpened([...opened, name])}
            />
          </Stack>
        )
      }}
    </Loaded>
  )
}

/** `value[x]` is one element for each of its types. */
function choicesOf(element: Element): readonly Element[] {
  if (!element.name.endsWith('[x]')) return [element]
  return element.types.map((type) => ({
    ...element,
    name: element.name.slice(0, -3) + type.charAt(0).toUpperCase() + type.slice(1),
    types: [type],
    isRequired: false,
  }))
}

function isEmpty(value: unknown): boolean {
  return value === undefined || value === '' || (Array.isArray(value) && value.length === 0)
}

interface FieldProps {
  readonly element: Element
  readonly type: string
  readonly value: unknown
  readonly onChange: (value: unknown) => void
}

function Field(props: FieldProps) {
  return props.element.isList ? <ListField {...props} /> : <One {...props} />
}

function ListField({ element, type, value, onChange }: FieldProps) {
  const items = Array.isArray(value) ? value : []
  const shown = items.length === 0 ? [undefined] : items
  const { names, drop } = useNames(shown.length)
  const set = (place: number, next: unknown) => {
    if (isEmpty(next)) drop(place)
    const changed = shown.map((item, at) => (at === place ? next : item))
    onChange(changed.filter((item) => !isEmpty(item)))
  }
  return (
    <Fieldset p={PADDING} legend={`${element.name}${element.isRequired ? ' *' : ''}`}>
      <Stack gap="xs">
        {shown.map((item, place) => (
          <Group key={names[place]} align="flex-start" gap="xs">
            <div style={{ flex: '1 1 12rem', minWidth: 0 }}>
              <One {...{ element, type }} value={item} onChange={(next) => set(place, next)} />
            </div>
            <Button variant="subtle" size="compact-sm" onClick={() => set(place, undefined)}>
              {words.remove}
            </Button>
          </Group>
        ))}
        <Button
          variant="subtle"
          size="compact-sm"
          w="fit-content"
          onClick={() => onChange([...items, isPrimitive(element) ? ' ' : {}])}
        >
          {words.another}
        </Button>
      </Stack>
    </Fieldset>
  )
}

function isPrimitive({ types: [type = ''] }: Element): boolean {
  return /^[a-z]/.test(type) || type === 'String'
}

function One({ element, type, value, onChange }: FieldProps) {
  if (isPrimitive(element)) return <Primitive {...{ element, type, value, onChange }} />
  const [own = ''] = element.types
  const isInline = own === 'BackboneElement' || own === 'Element'
  const isKnown = own !== 'Resource' && own !== '' && own !== 'Extension'
  if (!isKnown) return <Raw {...{ element, type, value, onChange }} />
  const fields = (
    <Fields
      type={isInline ? type : own}
      path={isInline ? element.path : own}
      value={isObject(value) ? value : {}}
      onChange={(next) => onChange(Object.keys(next).length === 0 ? undefined : next)}
    />
  )
  return element.isList ? (
    fields
  ) : (
    <Fieldset p={PADDING} legend={element.name}>
      {fields}
    </Fieldset>
  )
}

const NUMBERS = ['integer', 'decimal', 'positiveInt', 'unsignedInt']

function Primitive({ element, value, onChange }: FieldProps) {
  const { name, types, isRequired, isList, valueSet, hint } = element
  const codes = useCodes(valueSet)
  const label = isList ? undefined : name
  const common = { label, 'aria-label': name, description: isList ? undefined : hint }
  const [type = ''] = types
  if (type === 'boolean' || codes.data?.length) {
    const yesOrNo = ['true', 'false']
    return (
      <Select
        {...common}
        searchable
        clearable
        withAsterisk={isRequired}
        data={codes.data ?? yesOrNo}
        value={value === undefined ? null : String(value)}
        onChange={(next) => onChange(type === 'boolean' && next ? next === 'true' : (next ?? ''))}
      />
    )
  }
  const toValue = (text: string) =>
    NUMBERS.includes(type) && text !== '' && Number.isFinite(Number(text)) ? Number(text) : text
  const inputType = type === 'date' ? 'date' : 'text'
  return (
    <TextInput
      {...common}
      name={name}
      type={inputType}
      withAsterisk={isRequired}
      value={value === undefined ? '' : String(value).trimStart()}
      onChange={({ currentTarget }) => onChange(toValue(currentTarget.value))}
    />
  )
}

/** Elements that hold whole resources are typed as JSON. */
function Raw({ element, value, onChange }: FieldProps) {
  const [text, setText] = useState(() => (value === undefined ? '' : JSON.stringify(value)))
  return (
    <Textarea
      label={element.name}
      autosize
      value={text}
      onChange={({ currentTarget }) => {
        setText(currentTarget.value)
        try {
          onChange(JSON.parse(currentTarget.value))
        } catch {
          // Half-typed JSON is no value yet.
        }
      }}
    />
  )
}

interface Element {
  /** `value[x]` has one of its types in place of the mark. */
  readonly name: string
  /** The path in the definition; those of elements below it begin with it. */
  readonly path: string
  readonly types: readonly string[]
  readonly isList: boolean
  readonly isRequired: boolean
  readonly valueSet: string | undefined
  readonly hint: string | undefined
}

const HIDDEN = [
  'id',
  'extension',
  'modifierExtension',
  'contained',
  'meta',
  'implicitRules',
  'text',
]

/** The elements of a type, by the StructureDefinition that the service has of it. */
function useStructure(type: string) {
  return useQuery({
    queryKey: ['structure', type],
    queryFn: async () => {
      const query = new URLSearchParams({ type, derivation: 'specialization', _count: '5' })
      const own = await medplum.get<Bundle<StructureDefinition>>(
        `fhir/R4/StructureDefinition?${query}`,
      )
      const named = `fhir/R4/StructureDefinition?name=${type}`
      const found = own.entry?.length ? own : await medplum.get<typeof own>(named)
      return found.entry?.[0]?.resource?.snapshot?.element ?? []
    },
    staleTime: Number.POSITIVE_INFINITY,
  })
}

/** The elements directly below a path. */
function elementsBelow(
  definitions: readonly ElementDefinition[],
  path: string,
): readonly Element[] {
  return definitions.flatMap((definition) => {
    const own = definition.path ?? ''
    const name = own.slice(path.length + 1)
    const isBelow = own.startsWith(`${path}.`) && !name.includes('.')
    return isBelow && !HIDDEN.includes(name) ? [elementOf(definition, name)] : []
  })
}

function elementOf({ path = '', type, max, min, binding, short }: ElementDefinition, name: string) {
  return {
    name,
    path,
    types: type?.map(({ code }) => (code ?? '').replace(/^.*System\./, '')) ?? [],
    isList: max === '*',
    isRequired: (min ?? 0) > 0,
    valueSet: binding?.strength === 'required' ? binding.valueSet?.split('|')[0] : undefined,
    hint: short,
  }
}

/** The codes that an element may have; empty where the service cannot say. */
function useCodes(valueSet: string | undefined) {
  return useQuery({
    queryKey: ['codes', valueSet],
    queryFn: async () => {
      const query = new URLSearchParams({ url: valueSet ?? '', count: '500' })
      const { expansion } = await medplum.get<ValueSet>(`fhir/R4/ValueSet/$expand?${query}`)
      return expansion?.contains?.map(({ code = '', display }) => ({
        value: code,
        label: display ? `${display} (${code})` : code,
      }))
    },
    enabled: valueSet !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
  })
}
