/** The agents of the project, with the state of their connections. */
import type { Agent, Parameters, Resource } from '@medplum/fhirtypes'
import { Link } from 'wouter'
import { Empty } from '../../parts/loaded.tsx'
import { Dot, Outcome } from '../../parts/outcome.tsx'
import { Page } from '../../parts/page.tsx'
import { PagedTable } from '../../parts/query-table.tsx'
import type { Column } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import words from '../../texts/agents.json' with { type: 'json' }

interface Row {
  readonly agent: Agent
  readonly state: State
}

interface State {
  readonly status: string
  readonly version: string | undefined
  readonly lastUpdated: string | undefined
}

export function Agents() {
  return (
    <Page title={words.title} hint={words.hint}>
      <PagedTable
        path="fhir/R4/Agent/$bulk-status?_count=100&_sort=name"
        every={5000}
        label={words.title}
        rows={toRow}
        rowKey={({ agent }) => agent.id ?? ''}
        linkOf={({ agent }) => `/agents/${agent.id}`}
        columns={columns}
        empty={
          <Empty
            title={words.none}
            hint={words.noneHint}
            action={<Link href="/resources/Agent/new">{words.create}</Link>}
          />
        }
      />
    </Page>
  )
}

function toRow({ parameter = [] }: Parameters): readonly Row[] {
  const part = (name: string) => parameter.find((one) => one.name === name)?.resource
  const agent = part('agent')
  if (agent?.resourceType !== 'Agent') return []
  return [{ agent, state: agentState(part('result')) }]
}

/** Reads the answer of `$status`. */
export function agentState(result: Resource | undefined): State {
  const all = result?.resourceType === 'Parameters' ? (result.parameter ?? []) : []
  const value = (name: string) => all.find((one) => one.name === name)
  return {
    status: value('status')?.valueCode ?? 'unknown',
    version: value('version')?.valueString,
    lastUpdated: value('lastUpdated')?.valueInstant,
  }
}

const columns: readonly Column<Row>[] = [
  { name: words.name, cell: ({ agent }) => agent.name ?? agent.id },
  { name: words.connection, cell: ({ state }) => <ConnectionState status={state.status} /> },
  { name: words.enabled, cell: ({ agent }) => <Outcome status={agent.status ?? 'off'} /> },
  { name: words.version, cell: ({ state }) => state.version },
  { name: words.changed, cell: ({ state }) => <When at={state.lastUpdated} /> },
]

const COLORS: Readonly<Record<string, string>> = { connected: 'green', disconnected: 'red' }

export function ConnectionState({ status }: { readonly status: string }) {
  const known: Readonly<Record<string, string>> = {
    connected: words.connected,
    disconnected: words.disconnected,
    unknown: words.unknown,
  }
  return <Dot color={COLORS[status] ?? 'gray'}>{known[status] ?? status}</Dot>
}
