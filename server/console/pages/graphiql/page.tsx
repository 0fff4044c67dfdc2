/** GraphQL with the rights of the person who is signed in: a query, its variables, the answer, and the schema. */
import { acceptCompletion, autocompletion, closeBrackets } from '@codemirror/autocomplete'
import { type Extension, Prec } from '@codemirror/state'
import { keymap } from '@codemirror/view'
import { Button, Grid, Group, Kbd, Select, Stack, Title } from '@mantine/core'
import { completion, graphqlLanguageSupport, stateExtensions } from 'cm6-graphql'
import type { GraphQLSchema } from 'graphql'
import { useMemo, useRef, useState } from 'react'
import { useSend } from '../../api.ts'
import { useDraft } from '../../drafts.ts'
import { Editor, jsonText } from '../../parts/editor.tsx'
import { Page as Frame } from '../../parts/page.tsx'
import { Problem } from '../../parts/problem.tsx'
import { medplum } from '../../session.ts'
import { texts } from '../../texts/texts.ts'
import { SchemaTypes, useSchema } from './schema.tsx'

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
  const names = operationsOf(query.value)
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
            <Title order={2} size="h5">
              {words.variables}
            </Title>
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
      // Before the key that opens a new line.
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

/** A document with several of them has to say which is meant. */
function operationsOf(query: string): string[] {
  return [...query.matchAll(/^\s*(?:query|mutation)\s+(\w+)/gm)].map(([, name = '']) => name)
}
