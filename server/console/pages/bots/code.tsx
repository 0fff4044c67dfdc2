/** The source of a bot: edited, kept as a file of its own, and deployed; errors stand at their line. */
import { indentWithTab } from '@codemirror/commands'
import { StreamLanguage } from '@codemirror/language'
import { typescript } from '@codemirror/legacy-modes/mode/javascript'
import { lintGutter } from '@codemirror/lint'
import { keymap } from '@codemirror/view'
import { Button, Group, Stack } from '@mantine/core'
import type { Bot } from '@medplum/fhirtypes'
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
/** Tab indents; Escape before it leaves the editor. */
const code = [StreamLanguage.define(typescript), lintGutter(), keymap.of([indentWithTab])]

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
  const key = `bot-code/${bot.id}`
  const draft = useDraft(key, saved)
  // The service keeps the source of what it compiles.
  const filename = (bot.sourceCode?.title ?? 'index.ts').replace(/\.[cm]?js$/, '.ts')
  const deployment = { code: draft.value, filename }
  const deploy = useSend({
    send: () => medplum.post(medplum.fhirUrl('Bot', bot.id ?? '', '$deploy'), deployment),
    done: words.deployed,
    draft: key,
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
        extensions={code}
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

/** "… (line 2, column 13)" */
function marksOf(error: unknown): readonly Mark[] {
  return problemLines(error).flatMap(({ text }) => {
    const [, line, column] = /\(line (\d+), column (\d+)\)$/.exec(text) ?? []
    return line === undefined ? [] : [{ line: Number(line), column: Number(column), text }]
  })
}
