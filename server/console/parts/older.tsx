/** The button below a list of `Parameters` that shows the next page. */
import { Button } from '@mantine/core'
import type { Parameters } from '@medplum/fhirtypes'

interface Props {
  readonly list: Parameters
  readonly label: string
  readonly select: (change: { readonly _cursor: string }) => void
}

export function Older({ list: { parameter = [] }, label, select }: Props) {
  const next = parameter.find(({ name }) => name === 'next')?.valueUrl
  const cursor = next && new URL(next).searchParams.get('_cursor')
  if (!cursor) return null
  return (
    <Button variant="default" mt="sm" onClick={() => select({ _cursor: cursor })}>
      {label}
    </Button>
  )
}
