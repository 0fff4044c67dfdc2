/** Search parameters of the project's own. */
import { Group, Stack, Text, TextInput } from '@mantine/core'
import type { Bundle, SearchParameter } from '@medplum/fhirtypes'
import { useGet } from '../../api.ts'
import { Empty } from '../../parts/empty.tsx'
import { Form } from '../../parts/form.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { DataTable } from '../../parts/table.tsx'
import { medplum } from '../../session.ts'
import { texts } from '../../texts/texts.ts'

const words = texts.project
const none = { code: '', base: '', type: 'string', expression: '' }

export function Parameters() {
  const found = useGet<Bundle<SearchParameter>>('fhir/R4/SearchParameter?_count=200')
  return (
    <Stack>
      <Text size="sm" c="dimmed">
        {words.parametersHint}
      </Text>
      <Loaded query={found}>
        {({ entry = [] }) => (
          <DataTable
            label={words.tabs.parameters}
            rows={entry.flatMap(({ resource }) => resource ?? [])}
            keyOf={({ id }) => id ?? ''}
            linkOf={({ id }) => `/resources/SearchParameter/${id}`}
            empty={<Empty title={words.noParameters} hint={words.noParametersHint} />}
            columns={[
              { name: words.code, cell: ({ code }) => code },
              { name: words.base, cell: ({ base }) => base?.join(', ') },
              { name: words.type, cell: ({ type }) => type },
              { name: words.expression, cell: ({ expression }) => expression },
            ]}
          />
        )}
      </Loaded>
      <Text fw={600}>{words.addParameter}</Text>
      <Form name="search-parameter" saved={none} send={create} done={texts.common.saved}>
        {({ text }) => (
          <>
            <Group grow align="start">
              <TextInput label={words.code} placeholder="eye-color" {...text('code')} />
              <TextInput label={words.base} placeholder="Patient" {...text('base')} />
              <TextInput label={words.type} placeholder="string" {...text('type')} />
            </Group>
            <TextInput
              label={words.expression}
              placeholder="Patient.extension('…').value"
              {...text('expression')}
            />
          </>
        )}
      </Form>
    </Stack>
  )
}

async function create({ code, base, type, expression }: typeof none): Promise<unknown> {
  return await medplum.post('fhir/R4/SearchParameter', {
    resourceType: 'SearchParameter',
    url: `${location.origin}/SearchParameter/${base}-${code}`,
    name: code,
    description: code,
    status: 'active',
    code,
    base: base.split(/[\s,]+/).filter((name) => name !== ''),
    type,
    expression,
  })
}
