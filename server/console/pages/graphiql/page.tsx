/** GraphQL with the signed-in person's rights: query, variables, result and schema. */
import { acceptCompletion, autocompletion, closeBrackets } from '@codemirror/autocomplete'
import { type Extension, Prec } from '@codemirror/state'
import { keymap } from '@codemirror/view'
import {
  Button,
  Code,
  Grid,
  Group,
  Kbd,
  Select,
  Stack,
  Text,
  Title,
  UnstyledButton,
} from '@mantine/core'
import { useQuery } from '@tanstack/react-query'
import { completion, graphqlLanguageSupport, stateExtensions } from 'cm6-graphql'
import { buildClientSchema, type GraphQLSchema } from 'graphql'
import { useMemo, useRef, useState } from 'react'
import { useSend } from '../../client/api.ts'
import { useDraft } from '../../client/drafts.ts'
import { Problem } from '../../client/problem.tsx'
import { medplum } from '../../client/session.ts'
import { Editor, jsonText } from '../../parts/editor.tsx'
import { Page as Frame } from '../../parts/page.tsx'
import { QueryTable } from '../../parts/query-table.tsx'
import { texts } from '../../texts/texts.ts'

const words = texts.graphiql
const FIRST = `{
  PatientList(_count: 5) {
    id
    name {
      family
      given
    }
  }
}
`

export function Page() {
  const query = useDraft('graphql', FIRST)
  const variables = useDraft('graphql-variables', '{}')
  const [operation, setOperation] = useState<string | null>(null)
  const names = operationNames(query.value)
  const name = names.find((one) => one === operation) ?? names[0]
  const schema = useSchema()
  const answer = useSend({
    send: async () => {
      const values = JSON.parse(variables.value || '{}')
      return JSON.stringify(await medplum.graphql(query.value, name, values), null, 2)
    },
    notify: false,
  })
  const extensions = useLanguage(schema.data, answer.mutate)
  return (
    <Frame title={words.title} hint={words.hint}>
      <Grid>
        <Grid.Col span={{ base: 12, md: 6 }}>
          <Stack gap="xs">
            <Editor
              label={words.query}
              extensions={extensions}
              value={query.value}
              onChange={query.set}
            />
            <Group>
              <Button id="ask" loading={answer.isPending} onClick={() => answer.mutate()}>
                {words.run}
              </Button>
              <span>
                <Kbd>Ctrl</Kbd> <Kbd>Enter</Kbd>
              </span>
              {names.length > 1 && name && (
                <Select
                  aria-label={words.operation}
                  data={names}
                  value={name}
                  onChange={setOperation}
                />
              )}
            </Group>
            <Title size="h5">{words.variables}</Title>
            <Editor
              label={words.variables}
              extensions={jsonText}
              height="7rem"
              value={variables.value}
              onChange={variables.set}
            />
          </Stack>
        </Grid.Col>
        <Grid.Col span={{ base: 12, md: 6 }} aria-live="polite" id="answer">
          <Problem error={answer.error} />
          {answer.data !== undefined && (
            <Editor label={words.answer} extensions={jsonText} height="36rem" value={answer.data} />
          )}
        </Grid.Col>
      </Grid>
      <Problem error={schema.error} />
      {schema.data && <SchemaTypes schema={schema.data} />}
    </Frame>
  )
}

function useLanguage(schema: GraphQLSchema | undefined, run: () => void): Extension {
  const latest = useRef(run)
  latest.current = run
  return useMemo(() => {
    const onKey = () => {
      latest.current()
      return true
    }
    return [
      // Takes precedence over the newline key.
      Prec.highest(keymap.of([{ key: 'Mod-Enter', run: onKey }])),
      keymap.of([{ key: 'Tab', run: acceptCompletion }]),
      autocompletion(),
      closeBrackets(),
      graphqlLanguageSupport(),
      completion,
      stateExtensions(schema),
    ]
  }, [schema])
}

/** A document with several operations must name the one to run. */
function operationNames(query: string): string[] {
  return [...query.matchAll(/^\s*(?:query|mutation)\s+(\w+)/gm)].map(([, name = '']) => name)
}

const ROOT = 'Query'
const TYPE = 'type { kind name ofType { kind name ofType { kind name ofType { kind name } } } }'
/** The standard introspection query returns 25 MB, so arguments of fields below the root are omitted. */
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

function useSchema() {
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

function SchemaTypes({ schema }: { readonly schema: GraphQLSchema }) {
  const names = useMemo(
    () => Object.keys(schema.getTypeMap()).filter((name) => !name.startsWith('__')),
    [schema],
  )
  const [type, setType] = useState(ROOT)
  const members = useQuery({
    queryKey: ['graphql-type', type],
    queryFn: () => fetchTypeMembers(type),
    staleTime: Number.POSITIVE_INFINITY,
  })
  return (
    <Stack gap="xs">
      <Title>{words.schema}</Title>
      <Select
        label={words.type}
        data={names}
        value={type}
        onChange={(name) => name && setType(name)}
        searchable
        limit={100}
        maw={320}
      />
      <QueryTable
        query={members}
        label={words.schema}
        rows={(rows) => rows}
        rowKey={({ name }) => name}
        empty={<Text c="dimmed">{words.noMembers}</Text>}
        columns={[
          { name: words.member, cell: ({ name }) => <Code>{name}</Code> },
          {
            name: words.memberType,
            cell: ({ type: own }) =>
              own && (
                <UnstyledButton
                  c="var(--mantine-color-anchor)"
                  onClick={() => setType(unwrapTypeName(own))}
                >
                  {printType(own)}
                </UnstyledButton>
              ),
          },
          { name: words.meaning, cell: ({ description }) => description },
          {
            name: words.inputs,
            cell: ({ args = [] }) => (
              <Text size="xs" lineClamp={3}>
                {args.map((one) => `${one.name}: ${printType(one.type)}`).join(', ')}
              </Text>
            ),
          },
        ]}
      />
    </Stack>
  )
}

async function fetchTypeMembers(name: string): Promise<readonly Member[]> {
  const { data } = await medplum.graphql(MEMBERS, 'Members', { name })
  const { fields, inputFields, enumValues } = data.__type ?? {}
  return fields ?? inputFields ?? enumValues ?? []
}

function printType(type: TypeReference | null | undefined): string {
  if (!type) return ''
  if (type.kind === 'NON_NULL') return `${printType(type.ofType)}!`
  if (type.kind === 'LIST') return `[${printType(type.ofType)}]`
  return type.name ?? ''
}

function unwrapTypeName({ name, ofType }: TypeReference): string {
  return ofType ? unwrapTypeName(ofType) : (name ?? '')
}
