/** The access policies of the project. */
import { Button } from '@mantine/core'
import type { AccessPolicy } from '@medplum/fhirtypes'
import { Link } from 'wouter'
import { Empty } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { RecordTable } from '../../parts/query-table.tsx'
import { When } from '../../parts/when.tsx'
import { texts } from '../../texts/texts.ts'

const words = texts.policies

export function Policies() {
  const create = (
    <Button component={Link} href="/policies/new">
      {words.create}
    </Button>
  )
  return (
    <Page title={words.title} hint={words.hint} actions={create}>
      <RecordTable<AccessPolicy>
        label={words.title}
        search="AccessPolicy?_count=1000&_sort=name"
        linkOf={({ id }) => `/policies/${id}`}
        empty={<Empty title={words.none} hint={words.noneHint} />}
        columns={[
          { name: words.name, cell: ({ name, id }) => name ?? id },
          { name: words.entries, cell: listResourceTypes },
          { name: words.changed, cell: ({ meta }) => <When at={meta?.lastUpdated} /> },
        ]}
      />
    </Page>
  )
}

function listResourceTypes({ resource = [] }: AccessPolicy): string {
  return [...new Set(resource.map(({ resourceType }) => resourceType))].join(', ')
}
