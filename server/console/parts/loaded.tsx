/** States of fetched data: loading, failed, empty, loaded. */
import { Button, Paper, Skeleton, Stack, Text } from '@mantine/core'
import type { Bundle, BundleEntry, Resource } from '@medplum/fhirtypes'
import type { InfiniteData, UseInfiniteQueryResult, UseQueryResult } from '@tanstack/react-query'
import { Problem } from '../client/problem.tsx'
import { texts } from '../texts/texts.ts'
import { Page } from './page.tsx'

export type Query<T> = Pick<UseQueryResult<T>, 'data' | 'error'> & { refetch(): unknown }

interface Props<T> {
  readonly query: Query<T>
  readonly children: (data: T) => React.ReactNode
}

/** Keeps showing data when a refetch fails, as the person may be typing. */
export function Loaded<T>({ query, children }: Props<T>) {
  const { data, error, refetch } = query
  return (
    <>
      {error !== null && <Problem error={error} retry={() => void refetch()} />}
      {data === undefined ? error === null && <Waiting /> : children(data)}
    </>
  )
}

interface PagesProps<T extends Resource> {
  readonly query: UseInfiniteQueryResult<InfiniteData<Bundle<T>>>
  readonly children: (entries: readonly BundleEntry<T>[]) => React.ReactNode
}

/** Shows the entries of the pages of a Bundle, with a button that reads the next page. */
export function Pages<T extends Resource>({ query, children }: PagesProps<T>) {
  return (
    <Loaded query={query}>
      {({ pages }) => (
        <>
          {children(pages.flatMap(({ entry = [] }) => entry))}
          {query.hasNextPage && (
            <Button
              variant="default"
              w="fit-content"
              loading={query.isFetchingNextPage}
              onClick={() => void query.fetchNextPage()}
            >
              {texts.common.more}
            </Button>
          )}
        </>
      )}
    </Loaded>
  )
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

interface EmptyProps {
  readonly title: string
  readonly hint?: React.ReactNode
  readonly action?: React.ReactNode
}

export function Empty({ title, hint, action }: EmptyProps) {
  return (
    <Paper withBorder p="xl">
      <Stack align="center" gap="xs">
        <Text fw={600} ta="center">
          {title}
        </Text>
        {hint && (
          <Text c="dimmed" size="sm" ta="center">
            {hint}
          </Text>
        )}
        {action}
      </Stack>
    </Paper>
  )
}

/** Shown for pages without access; the service would reject their requests. */
export function NotYours() {
  return <Page title={texts.app.notYours} hint={texts.app.notYoursHint} />
}
