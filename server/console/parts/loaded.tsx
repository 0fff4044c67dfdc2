/** The three states of whatever is fetched: on its way, failed, there. */
import { Skeleton, Stack } from '@mantine/core'
import type { UseQueryResult } from '@tanstack/react-query'
import { texts } from '../texts/texts.ts'
import { Problem } from './problem.tsx'

interface Props<T> {
  readonly query: UseQueryResult<T>
  readonly children: (data: T) => React.ReactNode
}

export function Loaded<T>({ query, children }: Props<T>) {
  const { data, error, refetch } = query
  if (error !== null) return <Problem error={error} retry={() => void refetch()} />
  if (data === undefined) return <Waiting />
  return <>{children(data)}</>
}

export function Waiting() {
  return (
    <Stack role="status" aria-label={texts.common.loading}>
      <Skeleton h={24} w="40%" />
      <Skeleton h={16} />
      <Skeleton h={16} w="80%" />
    </Stack>
  )
}
