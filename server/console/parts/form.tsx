/** The shared form: keeps drafts, and shows the service's issues at their fields. */
import { Alert, Button, Group, Stack } from '@mantine/core'
import { OperationOutcomeError } from '@medplum/core'
import type { OperationOutcomeIssue } from '@medplum/fhirtypes'
import { useRef } from 'react'
import { useSend } from '../client/api.ts'
import { type Draft, useDraft } from '../client/drafts.ts'
import { Problem, problemLines } from '../client/problem.tsx'
import { texts } from '../texts/texts.ts'
import { hasCompleteDates } from './time-input.tsx'

interface Props<V extends object, O> {
  /** Key of the draft; absent for secrets, which are never stored in the browser. */
  readonly name?: string
  readonly saved: V
  readonly send: (values: V) => Promise<O>
  readonly done?: string
  readonly after?: (output: O) => void
  readonly submit?: string
  readonly variant?: 'filled' | 'default'
  readonly children: (fields: Fields<V>) => React.ReactNode
}

export interface Fields<V extends object> {
  readonly values: V
  set(change: Partial<V>): void
  text(name: keyof V & string): TextProps
  flag(name: keyof V & string): FlagProps
  error(name: keyof V & string): string | undefined
}

interface TextProps {
  readonly name: string
  readonly value: string
  readonly error: string | undefined
  readonly onChange: (event: { readonly currentTarget: { readonly value: string } }) => void
}

interface FlagProps {
  readonly name: string
  readonly checked: boolean
  readonly error: string | undefined
  readonly onChange: (event: { readonly currentTarget: { readonly checked: boolean } }) => void
}

export function Form<V extends object, O>(props: Props<V, O>) {
  const { name, saved, send, done, after, submit = texts.common.save, variant, children } = props
  const draft = useDraft(name, saved)
  const sending = useSend<V, O>({
    send,
    ...(done === undefined ? {} : { done }),
    notify: false,
    draft: name,
    after(output) {
      draft.discard()
      after?.(output)
    },
  })
  const { values, rest } = placed(sending.error, Object.keys(saved))
  const set = (change: Partial<V>) => draft.set({ ...draft.value, ...change })
  const error = (field: string) => values.get(field)
  const fields: Fields<V> = {
    values: draft.value,
    set,
    error,
    text: (field) => ({
      name: field,
      value: String(draft.value[field] ?? ''),
      error: error(field),
      onChange: ({ currentTarget: { value } }) => set({ [field]: value } as Partial<V>),
    }),
    flag: (field) => ({
      name: field,
      checked: draft.value[field] === true,
      error: error(field),
      onChange: ({ currentTarget: { checked } }) => set({ [field]: checked } as Partial<V>),
    }),
  }
  return (
    <form
      noValidate
      onSubmit={(event) => {
        event.preventDefault()
        if (hasCompleteDates(event.currentTarget)) sending.mutate(draft.value)
      }}
    >
      <Stack>
        {children(fields)}
        <Restored draft={draft} />
        <Problem error={rest} />
        <Group>
          <Button type="submit" variant={variant ?? 'filled'} loading={sending.isPending}>
            {submit}
          </Button>
          {name && draft.isDirty && !draft.isRestored && (
            <Button variant="default" onClick={draft.discard}>
              {texts.common.discard}
            </Button>
          )}
        </Group>
      </Stack>
    </form>
  )
}

interface Placed {
  readonly values: ReadonlyMap<string, string>
  readonly rest: unknown
}

/** Assigns issues of an OperationOutcome to the fields in their expressions. */
function placed(error: unknown, names: readonly string[]): Placed {
  const values = new Map<string, string>()
  if (!(error instanceof OperationOutcomeError)) return { values, rest: error }
  const { outcome } = error
  const rest = (outcome.issue ?? []).filter((issue) => {
    const name = findIssueField(issue, names)
    if (name === undefined) return true
    const [line] = problemLines(new OperationOutcomeError({ ...outcome, issue: [issue] }))
    values.set(name, line?.text ?? '')
    return false
  })
  return {
    values,
    rest: rest.length > 0 ? new OperationOutcomeError({ ...outcome, issue: rest }) : null,
  }
}

function findIssueField({ expression }: OperationOutcomeIssue, names: readonly string[]) {
  const steps = (expression?.[0] ?? '').split('.').map((step) => step.replace(/\[.*$/, ''))
  return names.find((name) => steps.includes(name))
}

/** Returns a name per item; call `drop` when the item at a position is removed. */
export function useNames(count: number) {
  const list = useRef<number[]>([])
  const next = useRef(0)
  while (list.current.length < count) list.current.push(next.current++)
  list.current.length = count
  return { names: list.current, drop: (place: number) => void list.current.splice(place, 1) }
}

/** Notice that the page shows text typed before a reload or sign-in. */
export function Restored({
  draft: { isRestored, discard },
}: {
  readonly draft: Pick<Draft<unknown>, 'isRestored' | 'discard'>
}) {
  if (!isRestored) return null
  return (
    <Alert color="yellow" variant="light" role="status">
      {texts.common.restored}{' '}
      <Button size="compact-xs" variant="default" onClick={discard}>
        {texts.common.discard}
      </Button>
    </Alert>
  )
}
