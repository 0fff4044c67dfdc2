/** The source of a bot: edited, kept as a file of its own, and deployed; errors stand at their line. */
import { Button, Group, Stack } from '@mantine/core'
import type { Binary, Bot } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { useMemo } from 'react'
import { useSend } from '../../api.ts'
import { useDraft } from '../../drafts.ts'
import { Editor, type Mark } from '../../parts/editor.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Problem, problemLines } from '../../parts/problem.tsx'
import { Restored } from '../../parts/restored.tsx'
import { medplum } from '../../session.ts'
import { texts } from '../../texts/texts.ts'

const words = texts.bots.code

interface Props {
  readonly bot: Bot
}

export function Code({ bot }: Props) {
  const source = useQuery({
    queryKey: ['source', bot.id, bot.meta?.versionId],
    queryFn: () => sourceOf(bot),
  })
  return <Loaded query={source}>{(saved) => <Source bot={bot} saved={saved} />}</Loaded>
}

async function sourceOf({ sourceCode, executableCode }: Bot): Promise<string> {
  const url = sourceCode?.url ?? executableCode?.url
  return url === undefined ? words.first : await (await medplum.download(url)).text()
}

interface SourceProps extends Props {
  readonly saved: string
}

function Source({ bot, saved }: SourceProps) {
  const draft = useDraft(`bot-code/${bot.id}`, saved)
  const name = bot.sourceCode?.title ?? 'index.ts'
  const deploy = useSend({
    send: () => deployCode(bot, name, draft.value),
    done: words.deployed,
    after: draft.discard,
    notify: false,
  })
  const { error } = deploy
  const marks = useMemo(() => (error ? marksOf(error) : []), [error])
  return (
    <Stack>
      <Restored draft={draft} />
      <Editor
        label={words.label}
        language="typescript"
        height="28rem"
        value={draft.value}
        onChange={draft.set}
        marks={marks}
      />
      <Problem error={error} title={words.refused} />
      <Group>
        <Button onClick={() => deploy.mutate()} loading={deploy.isPending} id="deploy">
          {words.deploy}
        </Button>
        {draft.isDirty && (
          <Button variant="default" onClick={draft.discard}>
            {texts.common.discard}
          </Button>
        )}
      </Group>
    </Stack>
  )
}

/** Code that is refused changes nothing, so the source is stored after it. */
async function deployCode({ id = '' }: Bot, filename: string, code: string): Promise<void> {
  await medplum.post(medplum.fhirUrl('Bot', id, '$deploy'), { code, filename })
  const contentType = 'text/typescript'
  const binary: Binary = await medplum.createBinary({
    data: code,
    contentType,
    filename,
    securityContext: { reference: `Bot/${id}` },
  })
  const sourceCode = { contentType, title: filename, url: `Binary/${binary.id}` }
  await medplum.patchResource('Bot', id, [{ op: 'add', path: '/sourceCode', value: sourceCode }])
}

/** "… (line 2, column 13)" */
function marksOf(error: unknown): readonly Mark[] {
  return problemLines(error).flatMap(({ text }) => {
    const [, line, column] = /\(line (\d+), column (\d+)\)$/.exec(text) ?? []
    return line === undefined ? [] : [{ line: Number(line), column: Number(column), text }]
  })
}
