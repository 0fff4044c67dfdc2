/** Background work: exports, imports, asynchronous runs, reindexing. */
import { Button, Group, Stack, Title } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import type { AuditEvent, Resource } from '@medplum/fhirtypes'
import { useLocation } from 'wouter'
import { isAdmin, isSuperAdmin, medplum, useMe } from '../../client/session.ts'
import { Action } from '../../parts/action.tsx'
import { Empty } from '../../parts/loaded.tsx'
import { Outcome } from '../../parts/outcome.tsx'
import { Page } from '../../parts/page.tsx'
import { PagedTable, RecordTable } from '../../parts/query-table.tsx'
import type { Column } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { texts } from '../../texts/texts.ts'
import { exportAll, NewExport, NewImport } from './new.tsx'

const words = texts.jobs
const EVERY_MS = 3000

export type Job = Resource & {
  readonly status?: string
  readonly request?: string
  readonly requestTime?: string
  readonly transactionTime?: string
}

export function Jobs() {
  const me = useMe()
  const [isOpen, { open, close }] = useDisclosure()
  const [isImporting, importing] = useDisclosure()
  const [, navigate] = useLocation()
  const start = isAdmin(me) && (
    <>
      <Button variant="default" onClick={importing.open}>
        {words.startImport}
      </Button>
      <Button variant="default" onClick={open}>
        {words.start}
      </Button>
      <Action variant="filled" send={exportAll} after={(id) => navigate(`/jobs/exports/${id}`)}>
        {words.exportAll}
      </Action>
    </>
  )
  return (
    <Page title={words.title} hint={words.hint} actions={start}>
      <Title>{words.exports}</Title>
      <Listed type="BulkDataExport" link="/jobs/exports" empty={words.noExports} />
      {isAdmin(me) && <Imports />}
      <Title>{words.others}</Title>
      <Listed type="AsyncJob" link="/jobs/async" empty={words.noOthers} />
      {isSuperAdmin(me) && <Reindex />}
      <NewExport isOpen={isOpen} close={close} />
      <NewImport isOpen={isImporting} close={importing.close} />
    </Page>
  )
}

function Imports() {
  return (
    <>
      <Title>{words.imports}</Title>
      <PagedTable
        path="fhir/R4/AuditEvent?subtype=kick-off&_count=50&_sort=-date"
        every={EVERY_MS}
        label={words.imports}
        rows={parseImports}
        rowKey={({ id }) => id}
        linkOf={({ id }) => `/jobs/imports/${id}`}
        empty={<Empty title={words.noImports} hint={words.noImportsHint} />}
        columns={[
          { name: words.types, cell: ({ types }) => types },
          { name: words.asked, cell: ({ at }) => <When at={at} /> },
        ]}
      />
    </>
  )
}

function parseImports({ entity = [], recorded }: AuditEvent) {
  return entity.flatMap(({ what, detail = [] }) => {
    const [, id] = /^AsyncJob\/(.*)$/.exec(what?.reference ?? '') ?? []
    const types = detail.find(({ type }) => type === 'types')?.valueString ?? id
    return id === undefined ? [] : [{ id, types, at: recorded }]
  })
}

interface ListedProps {
  readonly type: string
  readonly link: string
  readonly empty: string
}

function Listed({ type, link, empty }: ListedProps) {
  return (
    <RecordTable
      label={type}
      search={`${type}?_count=50&_sort=-_lastUpdated`}
      every={EVERY_MS}
      columns={columns}
      linkOf={({ id }) => `${link}/${id}`}
      empty={<Empty title={empty} hint={words.noneHint} />}
    />
  )
}

const columns: readonly Column<Job>[] = [
  { name: words.request, cell: ({ request = '' }) => stripBaseUrl(request) },
  { name: words.state, cell: ({ status = '' }) => <Outcome status={status} /> },
  { name: words.asked, cell: ({ requestTime }) => <When at={requestTime} /> },
  { name: words.changed, cell: ({ meta }) => <When at={meta?.lastUpdated} /> },
]

export function stripBaseUrl(request: string): string {
  return request.replace(/^https?:\/\/[^/]+\/(fhir\/R4\/)?/, '')
}

/** For operators only: it scans every row of a type. */
function Reindex() {
  const reindex = () => medplum.post('fhir/R4/$reindex', {}, undefined, ASYNC)
  return (
    <Stack gap="xs">
      <Title>{words.reindex}</Title>
      <Group>
        <Action send={reindex} done={words.reindexing}>
          {words.reindexAll}
        </Action>
      </Group>
    </Stack>
  )
}

const ASYNC = { headers: { Prefer: 'respond-async' } }
