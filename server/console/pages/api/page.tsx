/** API calls from the OpenAPI document. */
import { Button, Code, Stack, Text, TextInput } from '@mantine/core'
import { useState } from 'react'
import { useGet } from '../../client/api.ts'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import { fill, texts } from '../../texts/texts.ts'

const words = texts.api
const MOST = 100

interface Document {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Described>>>>
}

interface Described {
  readonly summary?: string
  readonly description?: string
}

interface Call extends Described {
  readonly name: string
}

export function Api() {
  const found = useGet<Document>('openapi.json')
  const file = (
    <>
      <Button component="a" href="/openapi.json" variant="default">
        openapi.json
      </Button>
      <Button component="a" href="/docs/api">
        {words.reference}
      </Button>
    </>
  )
  return (
    <Page title={words.title} hint={words.hint} actions={file}>
      <Loaded query={found}>{(document) => <Calls calls={listApiCalls(document)} />}</Loaded>
    </Page>
  )
}

function listApiCalls({ paths }: Document): readonly Call[] {
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).flatMap(([method, described]) =>
      described.summary === undefined
        ? []
        : [{ ...described, name: `${method.toUpperCase()} ${path}` }],
    ),
  )
}

function Calls({ calls }: { readonly calls: readonly Call[] }) {
  const [typed, setTyped] = useState('')
  const wanted = typed.toLowerCase().split(/\s+/)
  const found = calls.filter(({ name, summary }) => {
    const text = `${name} ${summary}`.toLowerCase()
    return wanted.every((word) => text.includes(word))
  })
  return (
    <Stack>
      <TextInput
        label={words.search}
        placeholder="Patient $everything"
        value={typed}
        onChange={({ currentTarget }) => setTyped(currentTarget.value)}
      />
      <Text size="sm" c="dimmed" role="status">
        {fill(words.count, { count: found.length, shown: Math.min(MOST, found.length) })}
      </Text>
      <DataTable
        label={words.title}
        rows={found.slice(0, MOST)}
        rowKey={({ name }) => name}
        columns={columns}
        empty={<Empty title={words.none} hint={words.noneHint} />}
      />
    </Stack>
  )
}

const columns: readonly Column<Call>[] = [
  { name: words.call, cell: ({ name }) => <Code className="call">{name}</Code> },
  { name: words.summary, cell: ({ summary }) => summary },
  { name: words.description, cell: ({ description }) => description },
]
