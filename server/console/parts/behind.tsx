/** Shown when another person has saved a record while it is edited; nothing is overwritten unseen. */
import { Alert, Button, Group, Stack, Text } from '@mantine/core'
import { lazy, Suspense, useState } from 'react'
import { fill, texts } from '../texts/texts.ts'
import { Waiting } from './loaded.tsx'

const words = texts.saving
// The library of the comparison is larger than most forms.
const Difference = lazy(async () => ({ default: (await import('./difference.tsx')).Difference }))

interface Props {
  readonly title: string
  readonly hint?: string
  /** Names of the elements that both sides have changed. */
  readonly both?: readonly string[]
  readonly mergeLabel: string
  readonly compareLabel: string
  /** Absent when the typed text cannot be merged. */
  readonly merge: (() => void) | undefined
  readonly discard: () => void
  /** The newest text, and the typed one. */
  readonly compare: () => { readonly newest: string; readonly mine: string }
}

export function Behind(props: Props) {
  const { title, hint = words.behindHint, both = [], mergeLabel, compareLabel } = props
  const [isCompared, setIsCompared] = useState(false)
  return (
    <Alert color="yellow" variant="light" role="alert">
      <Stack gap="sm">
        <Text size="sm" fw={600}>
          {title}
        </Text>
        <Text size="sm">{hint}</Text>
        {both.length > 0 && (
          <Text size="sm">{fill(words.conflicts, { names: both.join(', ') })}</Text>
        )}
        <Group gap="xs">
          {props.merge && (
            <Button size="xs" onClick={props.merge}>
              {mergeLabel}
            </Button>
          )}
          <Button
            size="xs"
            variant="default"
            aria-expanded={isCompared}
            onClick={() => setIsCompared(!isCompared)}
          >
            {compareLabel}
          </Button>
          <Button size="xs" variant="default" onClick={props.discard}>
            {words.discard}
          </Button>
        </Group>
        {isCompared && <Compared compare={props.compare} />}
      </Stack>
    </Alert>
  )
}

function Compared({ compare }: Pick<Props, 'compare'>) {
  const { newest, mine } = compare()
  return (
    <Suspense fallback={<Waiting />}>
      <Difference label={words.difference} before={newest} after={mine} />
    </Suspense>
  )
}
