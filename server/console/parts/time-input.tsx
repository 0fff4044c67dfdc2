/** Dates and times as the reader's country writes them, with the picker of the browser. */
import { TextInput } from '@mantine/core'
import { type FormEvent, useState } from 'react'
import { texts } from '../texts/texts.ts'

const words = texts.time
/** Without it Chromium takes years of six digits. */
const LATEST = { date: '9999-12-31', 'datetime-local': '9999-12-31T23:59' } as const

interface Props {
  readonly type: keyof typeof LATEST
  readonly label?: string
  readonly 'aria-label'?: string
  readonly description?: string
  readonly name?: string
  /** "2026-01-31" or "2026-01-31T08:30", in the reader's zone; '' while empty or incomplete. */
  readonly value?: string
  readonly error?: React.ReactNode
  readonly onChange: (event: { readonly currentTarget: { readonly value: string } }) => void
}

export function TimeInput({ type, error, onChange, ...rest }: Props) {
  const [isPartial, setPartial] = useState(false)
  const check = ({ currentTarget }: FormEvent<HTMLInputElement>) => {
    setPartial(currentTarget.validity.badInput)
  }
  return (
    <TextInput
      {...rest}
      type={type}
      max={LATEST[type]}
      error={error || (isPartial && words[type])}
      onBlur={check}
      onChange={(event) => {
        check(event)
        onChange(event)
      }}
      onInvalid={(event) => {
        event.preventDefault()
        check(event)
      }}
    />
  )
}

/** False while a date of the form is half typed, which its value does not show; the field then shows an error. */
export function hasCompleteDates(form: HTMLFormElement): boolean {
  const inputs = form.querySelectorAll<HTMLInputElement>('[type=date], [type=datetime-local]')
  const wrong = [...inputs].filter((input) => !input.checkValidity())
  wrong[0]?.focus()
  return wrong.length === 0
}

/** Returns an instant for a time in the reader's zone. */
export function toInstant(local: string): string {
  return new Date(local).toISOString()
}
