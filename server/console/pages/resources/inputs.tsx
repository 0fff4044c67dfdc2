/** Inputs for values without child elements. An emptied one yields `''`. */
import { NativeSelect, Textarea, TextInput } from '@mantine/core'
import { useState } from 'react'
import { numberFrom, parseExact } from '../../client/exact.ts'
import { texts } from '../../texts/texts.ts'
import { type Element, useCodes } from './elements.ts'

const words = texts.record

interface InputProps {
  readonly element: Element
  readonly value: unknown
  readonly onChange: (value: unknown) => void
}

const NUMBERS = ['integer', 'decimal', 'positiveInt', 'unsignedInt']
const LONG_TEXTS = ['markdown', 'xhtml']
const YES_OR_NO = ['true', 'false']

export function Primitive({ element, value, onChange }: InputProps) {
  const { name, types, isRequired, isList, valueSet, hint } = element
  const codes = useCodes(valueSet)
  const [type = ''] = types
  // Null holds the position of a list item without a value.
  const text = String(value ?? '')
  // A single line would drop line breaks. Fixed while typing.
  const [isLong] = useState(LONG_TEXTS.includes(type) || text.includes('\n'))
  const common = {
    label: isList ? undefined : name,
    'aria-label': name,
    description: isList ? undefined : hint,
    withAsterisk: isRequired,
  }
  const choices = type === 'boolean' ? YES_OR_NO.map(asChoice) : codes.data
  if (valueSet !== undefined && codes.isPending) {
    return <TextInput {...common} disabled value={text} />
  }
  const input = {
    ...common,
    name,
    value: text,
    onChange: ({ currentTarget: { value } }: Typed) => onChange(typedAs(type, value)),
  }
  if (choices?.length) {
    const isListed = text === '' || choices.some(({ value }) => value === text)
    const others = isListed ? [] : [asChoice(text)]
    return <NativeSelect {...input} data={[{ value: '', label: '' }, ...choices, ...others]} />
  }
  const placeholder = formatPlaceholder(type)
  if (isLong) return <Textarea {...input} placeholder={placeholder} autosize minRows={2} />
  return <TextInput {...input} placeholder={placeholder} />
}

interface Typed {
  readonly currentTarget: { readonly value: string }
}

/** Invalid text stays text, which the service rejects with its path. */
function typedAs(type: string, text: string): unknown {
  if (NUMBERS.includes(type)) return numberFrom(text)
  return type === 'boolean' && YES_OR_NO.includes(text) ? text === 'true' : text
}

function asChoice(value: string) {
  return { value, label: value }
}

/** Dates may omit month and day, which the browser's date input does not support. */
function formatPlaceholder(type: string): string | undefined {
  return Object.entries(words.formats).find(([name]) => name === type)?.[1]
}

/** Edits elements with whole resources as JSON; invalid JSON is sent as text and rejected. */
export function Raw({ element, value, onChange }: InputProps) {
  const [text, setText] = useState(() =>
    typeof value === 'string' ? value : (JSON.stringify(value) ?? ''),
  )
  return (
    <Textarea
      label={element.isList ? undefined : element.name}
      aria-label={element.name}
      name={element.name}
      autosize
      value={text}
      onChange={({ currentTarget: { value } }) => {
        setText(value)
        onChange(parsed(value))
      }}
    />
  )
}

function parsed(text: string): unknown {
  try {
    return parseExact(text)
  } catch {
    return text
  }
}
