/** The shared form: keeps drafts, and shows the service's issues at their fields. */
import { Alert, Button, Group, Stack } from '@mantine/core'
import { isResource, OperationOutcomeError } from '@medplum/core'
import type { OperationOutcomeIssue } from '@medplum/fhirtypes'
import { useRef } from 'react'
import { useSend } from '../client/api.ts'
import { type Draft, useDraft } from '../client/drafts.ts'
import { conflicts, mapVersions, merged, type Versions } from '../client/merging.ts'
import { Problem, problemLines } from '../client/problem.tsx'
import { fill, texts } from '../texts/texts.ts'
import { Behind } from './behind.tsx'
import { hasCompleteDates } from './time-input.tsx'

/** Typed values, with the values and the version that the typing began from. */
export interface Typed<V> {
  readonly base: V
  readonly values: V
  readonly version: string | undefined
}

/** A record that the form changes, which others may save meanwhile. */
interface Edited<V> {
  /** Address of the record, read again after a failed save. */
  readonly path: string
  readonly version: string | undefined
  /** For values other than elements of the record. */
  readonly merging?: Merging<V>
}

export interface Merging<V> {
  /** Returns the names that both sides changed; undefined while the typed values cannot be merged. */
  both(versions: Versions<V>): readonly string[] | undefined
  merge(versions: Versions<V>): V
  format(values: V): string
}

const words = texts.saving

interface Props<V extends object, O> {
  /** Key of the draft; absent for secrets, which are never stored in the browser. */
  readonly name?: string
  readonly saved: V
  readonly edits?: Edited<V>
  readonly send: (values: V, typed: Typed<V>) => Promise<O>
  readonly done?: string
  readonly after?: (output: O) => void
  /** True to keep the values after they were sent, for another time. */
  readonly isRepeated?: boolean
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
  const { name, saved, edits, submit = texts.common.save, variant, children } = props
  const draft = useDraft<Typed<V>>(name, { base: saved, values: saved, version: edits?.version })
  const sending = useSending(props, draft)
  const { values, version } = draft.value
  const isBehind = edits !== undefined && draft.isDirty && version !== edits.version
  const isConflict = isBehind && !sending.isPending
  const { values: errors, rest } = placed(isConflict ? null : sending.error, Object.keys(saved))
  const fields = toFields(
    values,
    (change) => draft.set({ ...draft.value, values: { ...values, ...change } }),
    (field) => errors.get(field),
  )
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
        {isConflict && <BehindForm {...{ draft, saved, edits }} reset={sending.reset} />}
        <Problem error={rest} />
        <Group>
          <Button type="submit" variant={variant ?? 'filled'} loading={sending.isPending}>
            {submit}
          </Button>
          {name && draft.isDirty && !draft.isRestored && !isConflict && (
            <Button variant="default" onClick={draft.discard}>
              {texts.common.discard}
            </Button>
          )}
        </Group>
      </Stack>
    </form>
  )
}

function useSending<V extends object, O>(props: Props<V, O>, draft: Draft<Typed<V>>) {
  const { name, send, edits, done, after, isRepeated } = props
  return useSend<Typed<V>, O>({
    send: (typed) => send(typed.values, typed),
    done,
    notify: false,
    draft: name,
    // A newer version is shown next to the typed text.
    reread: edits && [edits.path],
    after(output, { values: base }) {
      const version = isResource(output) ? output.meta?.versionId : undefined
      if (!isRepeated) draft.settle(({ values }) => ({ base, values, version }))
      after?.(output)
    },
  })
}

function toFields<V extends object>(
  values: V,
  set: Fields<V>['set'],
  error: Fields<V>['error'],
): Fields<V> {
  return {
    values,
    set,
    error,
    text: (field) => ({
      name: field,
      value: String(values[field] ?? ''),
      error: error(field),
      onChange: ({ currentTarget: { value } }) => set({ [field]: value } as Partial<V>),
    }),
    flag: (field) => ({
      name: field,
      checked: values[field] === true,
      error: error(field),
      onChange: ({ currentTarget: { checked } }) => set({ [field]: checked } as Partial<V>),
    }),
  }
}

interface BehindFormProps<V> {
  readonly draft: Draft<Typed<V>>
  readonly saved: V
  readonly edits: Edited<V>
  readonly reset: () => void
}

/** Shown when another person has saved the record since the typing began. */
function BehindForm<V extends object>({ draft, saved, edits, reset }: BehindFormProps<V>) {
  const { version = '', merging = { both: conflicts, merge: merged, format: formatValues } } = edits
  const { base, values } = draft.value
  const versions = { base, mine: values, newest: saved }
  const both = merging.both(versions)
  const number = { number: version }
  const merge = () => {
    reset()
    draft.set({ base: saved, values: merging.merge(versions), version })
  }
  return (
    <Behind
      title={fill(words.behind, number)}
      both={both ?? []}
      mergeLabel={fill(words.merge, number)}
      compareLabel={fill(words.compare, number)}
      merge={both && merge}
      discard={() => {
        reset()
        draft.discard()
      }}
      compare={() => mapVersions(versions, merging.format)}
    />
  )
}

function formatValues(values: object): string {
  return JSON.stringify(values, null, 2)
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
