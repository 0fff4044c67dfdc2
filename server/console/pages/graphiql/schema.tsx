/** The types of the schema: the members of one at a time, with arguments, meaning and type; a type leads to its own. */
import { Code, Select, Stack, Text, Title, UnstyledButton } from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { buildClientSchema, type GraphQLSchema } from 'graphql'
import { useMemo, useState } from 'react'
import { Loaded } from '../../parts/loaded.tsx'
import { DataTable } from '../../parts/table.tsx'
import { medplum } from '../../session.ts'
import { texts } from '../../texts/texts.ts'

const words = texts.graphiql
const ROOT = 'Query'
const TYPE = 'type { kind name ofType { kind name ofType { kind name ofType { kind name } } } }'
/** The usual query for a schema brings 25 MB: the arguments of fields below the root are left out. */
const SCHEMA = `{
  __schema {
    queryType { name } mutationType { name }
    types {
      kind name
      fields { name ${TYPE} }
      enumValues { name } interfaces { kind name } possibleTypes { kind name }
    }
  }
  __type(name: "${ROOT}") { fields { name args { name ${TYPE} } } }
}`
const MEMBERS = `query Members($name: String!) {
  __type(name: $name) {
    fields { name description ${TYPE} args { name ${TYPE} } }
    inputFields { name description ${TYPE} }
    enumValues { name description }
  }
}`

interface TypeReference {
  readonly kind: string
  readonly name: string | null
  readonly ofType?: TypeReference | null
}

interface Member {
  readonly name: string
  readonly description?: string | null
  readonly type?: TypeReference
  readonly args?: readonly Member[]
}

interface Listed {
  readonly kind: string
  readonly name: string
  readonly fields: readonly Member[] | null
}

/** The schema of what this person may ask for, as far as names are completed by it. */
export function useSchema() {
  return useQuery({
    queryKey: ['graphql-schema'],
    queryFn: async () => {
      const { data } = await medplum.graphql(SCHEMA)
      const args = new Map<string, readonly Member[]>(
        data.__type.fields.map((field: Member) => [field.name, field.args ?? []]),
      )
      const types = data.__schema.types.map((type: Listed) => ({
        ...type,
        inputFields: type.kind === 'INPUT_OBJECT' ? [] : null,
        fields: type.fields?.map((field) => ({
          ...field,
          args: (type.name === ROOT && args.get(field.name)) || [],
        })),
      }))
      const schema = { ...data.__schema, types, directives: [] }
      return buildClientSchema({ __schema: schema }, { assumeValid: true })
    },
    staleTime: Number.POSITIVE_INFINITY,
  })
}

interface Props {
  readonly schema: GraphQLSchema
}

export function SchemaTypes({ schema }: Props) {
  const names = useMemo(
    () => Object.keys(schema.getTypeMap()).filter((name) => !name.startsWith('__')),
    [schema],
  )
  const [type, setType] = useState(ROOT)
  const members = useQuery({
    queryKey: ['graphql-type', type],
    queryFn: () => membersOf(type),
    staleTime: Number.POSITIVE_INFINITY,
  })
  return (
    <Stack gap="xs">
      <Title order={2} size="h4">
        {words.schema}
      </Title>
      <Select
        label={words.type}
        data={names}
        value={type}
        onChange={(name) => name && setType(name)}
        searchable
        limit={100}
        maw={320}
      />
      <Loaded query={members}>
        {(rows) => (
          <DataTable
            label={words.schema}
            rows={rows}
            keyOf={({ name }) => name}
            empty={<Text c="dimmed">{words.noMembers}</Text>}
            columns={[
              { name: words.member, cell: ({ name }) => <Code>{name}</Code> },
              {
                name: words.memberType,
                cell: ({ type: own }) =>
                  own && (
                    <UnstyledButton
                      c="var(--mantine-color-anchor)"
                      onClick={() => setType(namedOf(own))}
                    >
                      {textOf(own)}
                    </UnstyledButton>
                  ),
              },
              { name: words.meaning, cell: ({ description }) => description },
              {
                name: words.inputs,
                cell: ({ args = [] }) => (
                  <Text size="xs" lineClamp={3}>
                    {args.map((one) => `${one.name}: ${textOf(one.type)}`).join(', ')}
                  </Text>
                ),
              },
            ]}
          />
        )}
      </Loaded>
    </Stack>
  )
}

async function membersOf(name: string): Promise<readonly Member[]> {
  const { data } = await medplum.graphql(MEMBERS, 'Members', { name })
  const { fields, inputFields, enumValues } = data.__type ?? {}
  return fields ?? inputFields ?? enumValues ?? []
}

function textOf(type: TypeReference | null | undefined): string {
  if (!type) return ''
  if (type.kind === 'NON_NULL') return `${textOf(type.ofType)}!`
  if (type.kind === 'LIST') return `[${textOf(type.ofType)}]`
  return type.name ?? ''
}

function namedOf({ name, ofType }: TypeReference): string {
  return ofType ? namedOf(ofType) : (name ?? '')
}
