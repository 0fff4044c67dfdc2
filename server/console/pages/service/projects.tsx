/** All projects of the service, and a form that makes one. */
import { Stack, TextInput } from '@mantine/core'
import type { Bundle, Project } from '@medplum/fhirtypes'
import { useGet } from '../../api.ts'
import { Empty } from '../../parts/empty.tsx'
import { Form } from '../../parts/form.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { medplum } from '../../session.ts'
import { texts } from '../../texts/texts.ts'

const words = texts.service

export function Projects() {
  const found = useGet<Bundle<Project>>('fhir/R4/Project?_count=1000&_sort=-_lastUpdated')
  return (
    <Stack>
      <Loaded query={found}>
        {({ entry = [] }) => (
          <DataTable
            label={words.tabs.projects}
            rows={entry.flatMap(({ resource }) => resource ?? [])}
            keyOf={({ id }) => id ?? ''}
            linkOf={({ id }) => `/resources/Project/${id}`}
            empty={<Empty title={words.noProjects} />}
            columns={[
              { name: words.name, cell: ({ name, id }) => name ?? id },
              { name: words.features, cell: ({ features }) => features?.join(', ') },
              { name: words.created, cell: ({ meta }) => <When at={meta?.lastUpdated} /> },
            ]}
          />
        )}
      </Loaded>
      <Form
        name="new-project"
        saved={{ name: '' }}
        send={({ name }) => medplum.post('admin/Project', { resourceType: 'Project', name })}
        done={texts.common.saved}
        submit={words.make}
      >
        {({ text }) => <TextInput maw={400} label={words.projectName} {...text('name')} />}
      </Form>
    </Stack>
  )
}
