/** Project overview: active and waiting work, and problems. */
import { Alert, Button, Card, SimpleGrid, Stack, Text, Title } from '@mantine/core'
import type { Bundle } from '@medplum/fhirtypes'
import { lazy, Suspense } from 'react'
import { Link } from 'wouter'
import { useGet } from '../../client/api.ts'
import { Problem } from '../../client/problem.tsx'
import { isAdmin, mayDo, useMe } from '../../client/session.ts'
import { Waiting } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { fill, formatStoredSize, type Stored, texts } from '../../texts/texts.ts'
import { failures, type ProjectFigures } from '../bots/runs.ts'
import { failsNow, useDeliveryStates } from '../subscriptions/states.ts'

const words = texts.home
const EVERY_MS = 5000
const STORED_MS = 60_000
const LONG_WAIT_S = 60

// The chart library is as large as the rest of this page.
const LatestRuns = lazy(() =>
  import('./chart.tsx').then(({ LatestRuns: chart }) => ({ default: chart })),
)

export function Home() {
  const me = useMe()
  return (
    <Page title={words.title} hint={me.project.name}>
      {isAdmin(me) ? <Work projectId={me.project.id} /> : <Begin />}
    </Page>
  )
}

function Work({ projectId }: { readonly projectId: string }) {
  const figures = useGet<ProjectFigures>(`admin/projects/${projectId}/bots/stats`, {
    every: EVERY_MS,
  })
  const failing = useFailing()
  const jobs = useCount('AsyncJob?status=accepted,active')
  const exports = useCount('BulkDataExport?status=accepted,active')
  const stored = useGet<Stored>(`admin/projects/${projectId}/storage`, { every: STORED_MS })
  if (figures.error) return <Problem error={figures.error} retry={() => void figures.refetch()} />
  if (figures.data === undefined) return <Waiting />
  const { lanes, bots } = figures.data
  const started = bots.reduce((sum, bot) => sum + bot.started, 0)
  const failed = bots.reduce((sum, bot) => sum + failures(bot), 0)
  const inFlight = Object.values(lanes).reduce((sum, lane) => sum + lane.inFlight, 0)
  const oldest = Math.max(0, ...Object.values(lanes).map((lane) => lane.oldestWaitingSeconds))
  const rate = started === 0 ? '–' : `${Math.round((1000 * failed) / started) / 10} %`
  return (
    <Stack>
      <Attention failing={failing} oldest={oldest} />
      <SimpleGrid cols={{ base: 2, md: 4, xl: 7 }}>
        <Figure name={words.runs} value={started} href="/runs" />
        <Figure name={words.rate} value={rate} href="/runs?status=failed" />
        <Figure name={words.inFlight} value={inFlight} href="/bots" />
        <Figure name={words.oldest} value={fill(words.seconds, { s: Math.round(oldest) })} />
        <Figure name={words.failing} value={failing?.length} href="/subscriptions" />
        <Figure name={words.jobs} value={(jobs ?? 0) + (exports ?? 0)} href="/jobs" />
        <Figure
          name={words.storage}
          value={stored.data && formatStoredSize(stored.data)}
          href="/project/limits"
        />
      </SimpleGrid>
      {bots.length === 0 ? (
        <Begin />
      ) : (
        <Suspense fallback={<Waiting />}>
          <LatestRuns bots={bots} />
        </Suspense>
      )}
    </Stack>
  )
}

function useCount(search: string): number | undefined {
  const path = `fhir/R4/${search}&_summary=count`
  return useGet<Bundle>(path, { every: EVERY_MS }).data?.total
}

/** Ids of Subscriptions in error, and of those that the list marks as failing. */
function useFailing(): readonly string[] | undefined {
  const states = useDeliveryStates(useMe())
  const inError = useGet<Bundle>('fhir/R4/Subscription?status=error&_elements=id&_count=1000', {
    every: EVERY_MS,
  })
  if (states === undefined || inError.data === undefined) return undefined
  const failing = [...states].flatMap(([id, state]) => (failsNow(state) ? [id] : []))
  const ids = (inError.data.entry ?? []).flatMap(({ resource }) => resource?.id ?? [])
  return [...new Set([...failing, ...ids])]
}

interface AttentionProps {
  readonly failing: readonly string[] | undefined
  readonly oldest: number
}

function Attention({ failing = [], oldest }: AttentionProps) {
  if (failing.length === 0 && oldest < LONG_WAIT_S) return null
  const [only = ''] = failing.length === 1 ? failing : []
  return (
    <Alert
      color="yellow"
      title={
        // The yellow of the library is too faint for text.
        <Text span inherit c="var(--mantine-color-text)">
          {words.attention}
        </Text>
      }
    >
      {failing.length > 0 && (
        <Link href={`/subscriptions/${only}`.replace(/\/$/, '')}>
          {only === '' ? fill(words.failingHint, { count: failing.length }) : words.failingOne}
        </Link>
      )}
      {oldest >= LONG_WAIT_S && (
        <Text size="sm">{fill(words.waitHint, { s: Math.round(oldest) })}</Text>
      )}
    </Alert>
  )
}

interface FigureProps {
  readonly name: string
  readonly value: React.ReactNode
  readonly href?: string
}

function Figure({ name, value, href }: FigureProps) {
  return (
    <Card withBorder padding="sm">
      <Text size="sm" c="dimmed">
        {href ? <Link href={href}>{name}</Link> : name}
      </Text>
      <Title size="h3">{value ?? '–'}</Title>
    </Card>
  )
}

function Begin() {
  const me = useMe()
  return (
    <Stack>
      <Text>{words.begin}</Text>
      <div>
        <Button component={Link} href="/resources">
          {words.toRecords}
        </Button>{' '}
        {mayDo(me, 'Bot') && (
          <Button component={Link} href="/bots" variant="default">
            {words.toBots}
          </Button>
        )}
      </div>
    </Stack>
  )
}
