/** Fields of an object: present, required and optional ones. An emptied field stays; only its button removes an element. */
import { Button, CloseButton, Fieldset, Group, Select, Stack } from '@mantine/core'
import { isObject } from '@medplum/core'
import { useRef, useState } from 'react'
import type { Values } from '../../client/merging.ts'
import { useNames } from '../../parts/form.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { withElement, withoutElement, withoutItem } from './editing.ts'
import { type Element, elementsBelow, isPrimitive, useStructure } from './elements.ts'
import { Primitive, Raw } from './inputs.tsx'
import { RecordPicker } from './picker.tsx'
import { usualParts } from './templates.ts'

const words = texts.record
const PADDING = { base: 6, sm: 'md' } as const

interface FieldsProps {
  /** Type whose definition has the elements. */
  readonly type: string
  readonly path: string
  readonly value: Values
  readonly onChange: (value: Values) => void
  /** Elements that are shown before they have a value. */
  readonly opened?: readonly string[] | undefined
}

export function Fields({ type, path, value, onChange, opened: usual = [] }: FieldsProps) {
  const structure = useStructure(type)
  const [shownFirst, setShownFirst] = useState(usual)
  const [added, setAdded] = useState<readonly string[]>([])
  const fields = useRef<HTMLDivElement>(null)
  const remove = (name: string, next: Values) => {
    setShownFirst(shownFirst.filter((other) => other !== name))
    setAdded(added.filter((other) => other !== name))
    onChange(next)
    fields.current?.focus()
  }
  return (
    <Loaded query={structure}>
      {(definitions) => {
        const elements = elementsBelow(definitions, path)
        const isShown = ({ name, isRequired }: Element) =>
          name in value ||
          shownFirst.includes(name) ||
          added.includes(name) ||
          (isRequired && !name.includes(':'))
        return (
          <Stack gap="sm" ref={fields} tabIndex={-1}>
            {elements.filter(isShown).map((element) => (
              <Field
                key={element.name}
                element={element}
                type={type}
                value={value[element.name]}
                isNew={added.at(-1) === element.name && !(element.name in value)}
                onChange={(next) => onChange(withElement(value, element.name, next))}
                onRemove={() => remove(element.name, withoutElement(value, element.name))}
                onRemoveItem={(place) => onChange(withoutItem(value, element.name, place))}
              />
            ))}
            <Select
              className="add"
              aria-label={words.add}
              placeholder={words.add}
              searchable
              value={null}
              data={elements.filter((element) => !isShown(element)).map(({ name }) => name)}
              onChange={(name) => name && setAdded([...added, name])}
            />
          </Stack>
        )
      }}
    </Loaded>
  )
}

interface OneProps {
  readonly element: Element
  readonly type: string
  readonly value: unknown
  readonly onChange: (value: unknown) => void
}

interface FieldProps extends OneProps {
  /** Just added by the person, so it takes the focus. */
  readonly isNew: boolean
  readonly onRemove: () => void
  readonly onRemoveItem: (place: number) => void
}

function Field(props: FieldProps) {
  const { element, isNew, onRemove } = props
  const { name, isList, isRequired } = element
  const label = `${name}${isRequired ? ' *' : ''}`
  const isFramed = isList || !isPrimitive(element)
  const button = !isRequired && <Remove name={name} onClick={onRemove} />
  return (
    <div ref={isNew ? focusWithin : null} tabIndex={-1} data-element={name}>
      {isFramed ? (
        <Fieldset p={PADDING} legend={label}>
          <Beside button={!isList && button} align="flex-start">
            {isList ? <Items {...props} /> : <One {...props} />}
          </Beside>
        </Fieldset>
      ) : (
        <Beside button={button} align="flex-end">
          <One {...props} />
        </Beside>
      )}
    </div>
  )
}

function focusWithin(field: HTMLElement | null): void {
  const first = field?.querySelector<HTMLElement>('input, textarea') ?? field
  first?.focus()
}

interface BesideProps {
  readonly button: React.ReactNode
  /** Position of the button: at a frame's head, or at the input below a label. */
  readonly align: 'flex-start' | 'flex-end'
  readonly children: React.ReactNode
}

function Beside({ button, align, children }: BesideProps) {
  return (
    <Group align={align} gap={4} wrap="nowrap">
      <div style={{ flex: '1 1 0', minWidth: 0 }}>{children}</div>
      {button}
    </Group>
  )
}

interface RemoveProps {
  readonly name: string
  readonly onClick: () => void
}

function Remove({ name, onClick }: RemoveProps) {
  const label = fill(words.removeThis, { name })
  return <CloseButton aria-label={label} title={label} onClick={onClick} />
}

function Items({ element, type, value, onChange, onRemove, onRemoveItem }: FieldProps) {
  const items = Array.isArray(value) ? value : []
  const shown = items.length === 0 ? [undefined] : items
  const { names, drop } = useNames(shown.length)
  const another = useRef<HTMLButtonElement>(null)
  const removeAt = (place: number) => {
    if (shown.length === 1) return onRemove()
    drop(place)
    onRemoveItem(place)
    another.current?.focus()
  }
  return (
    <Stack gap="xs">
      {shown.map((item, place) => {
        const name = shown.length === 1 ? element.name : `${element.name} ${place + 1}`
        return (
          <Beside
            key={names[place]}
            align="flex-start"
            button={<Remove name={name} onClick={() => removeAt(place)} />}
          >
            <One
              {...{ element, type }}
              value={item}
              onChange={(next) => onChange(shown.with(place, next))}
            />
          </Beside>
        )
      })}
      <Button
        ref={another}
        variant="subtle"
        size="compact-sm"
        w="fit-content"
        onClick={() => onChange([...shown, isPrimitive(element) ? '' : {}])}
      >
        {words.another}
      </Button>
    </Stack>
  )
}

function One({ element, type, value, onChange }: OneProps) {
  if (isPrimitive(element)) return <Primitive {...{ element, value, onChange }} />
  const [own = ''] = element.types
  if (['Resource', '', 'Extension'].includes(own)) return <Raw {...{ element, value, onChange }} />
  if (own === 'Reference') return <ReferenceField {...{ element, type, value, onChange }} />
  const isInline = own === 'BackboneElement' || own === 'Element'
  return (
    <Fields
      type={isInline ? type : own}
      path={isInline ? element.path : own}
      opened={isObject(value) && Object.keys(value).length > 0 ? [] : usualParts(own)}
      value={isObject(value) ? value : {}}
      onChange={onChange}
    />
  )
}

/** Elements of a reference that identify its record. */
const OF_THE_RECORD = ['reference', 'type', 'identifier', 'display']

/** A search for the record above the elements of the reference. */
function ReferenceField({ element, value, onChange }: OneProps) {
  const reference = isObject(value) ? value : {}
  const others = OF_THE_RECORD.reduce<Values>(withoutElement, reference)
  return (
    <Stack gap="xs">
      <RecordPicker
        targets={element.targets}
        onPick={(picked) => onChange({ ...others, ...picked })}
      />
      <Fields type="Reference" path="Reference" value={reference} onChange={onChange} />
    </Stack>
  )
}
