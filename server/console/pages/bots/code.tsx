/** The code of a bot: edits and deploys it. */

import { indentWithTab } from '@codemirror/commands'
import { StreamLanguage } from '@codemirror/language'
import { typescript } from '@codemirror/legacy-modes/mode/javascript'
import { lintGutter } from '@codemirror/lint'
import { keymap } from '@codemirror/view'
import { Button, Group, Stack } from '@mantine/core'
import type { Bot } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { useMemo } from 'react'
import { useSend } from '../../client/api.ts'
import { type Draft, useDraft } from '../../client/drafts.ts'
import { Problem, problemLines } from '../../client/problem.tsx'
import { medplum } from '../../client/session.ts'
import { Behind } from '../../parts/behind.tsx'
import { Editor, type Mark } from '../../parts/editor.tsx'
import { Restored } from '../../parts/form.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { texts } from '../../texts/texts.ts'
import { botLanguage } from './language.ts'

const codeWords = texts.bots.code
const SOURCE = 'source'
/** Tab indents; Escape then Tab leaves the editor. */
const code = [
  StreamLanguage.define(typescript),
  lintGutter(),
  // A list of suggestions takes Tab and Escape first.
  botLanguage,
  keymap.of([indentWithTab]),
]

interface CodeProps {
  readonly bot: Bot
}

/** Edits and deploys a bot's source; errors appear at their line. */
export function Code({ bot }: CodeProps) {
  const source = useQuery({
    queryKey: [SOURCE, bot.id],
    queryFn: () => readSource(`fhir/R4/Bot/${bot.id}`),
  })
  return (
    <Loaded query={source}>{(saved) => <Source key={bot.id} bot={bot} saved={saved} />}</Loaded>
  )
}

/** Returns the code that is deployed now. */
async function readSource(path: string): Promise<string> {
  const { sourceCode, executableCode } = await medplum.get<Bot>(path, { cache: 'no-store' })
  const url = sourceCode?.url ?? executableCode?.url
  return url === undefined ? codeWords.first : await (await medplum.download(url)).text()
}

interface SourceProps extends CodeProps {
  readonly saved: string
}

/** Code being edited; `base` is the deployed code that it began from. */
interface Edit {
  readonly base: string
  readonly value: string
}

function Source({ bot, saved }: SourceProps) {
  const key = `bot-code/${bot.id}`
  const draft = useDraft<Edit>(key, { base: saved, value: saved })
  const { base, value } = draft.value
  const deploy = useDeploying(bot, key, draft)
  const isBehind = draft.isDirty && !deploy.isPending && saved !== base
  const error = isBehind ? null : deploy.error
  const marks = useMemo(() => (error ? parseErrorMarks(error) : []), [error])
  return (
    <Stack>
      <Restored draft={draft} />
      <Editor
        label={codeWords.label}
        extensions={code}
        height="34rem"
        value={value}
        onChange={(next) => draft.set({ base, value: next })}
        marks={marks}
      />
      {isBehind && (
        <Behind
          title={codeWords.behind}
          hint={codeWords.behindHint}
          mergeLabel={codeWords.keep}
          compareLabel={codeWords.compare}
          merge={() => {
            deploy.reset()
            draft.set({ base: saved, value })
          }}
          discard={draft.discard}
          compare={() => ({ newest: saved, mine: value })}
        />
      )}
      <Problem error={error} title={codeWords.refused} />
      <Group>
        <Button
          onClick={() => deploy.mutate(draft.value)}
          loading={deploy.isPending}
          disabled={isBehind}
          id="deploy"
        >
          {codeWords.deploy}
        </Button>
        {draft.isDirty && !isBehind && (
          <Button variant="default" onClick={draft.discard}>
            {texts.common.discard}
          </Button>
        )}
      </Group>
    </Stack>
  )
}

/** Deploys the code, unless other code than its base is deployed by now. */
function useDeploying(bot: Bot, key: string, { settle }: Draft<Edit>) {
  const path = `fhir/R4/Bot/${bot.id}`
  // The service keeps the source of compiled code.
  const filename = (bot.sourceCode?.title ?? 'index.ts').replace(/\.[cm]?js$/, '.ts')
  return useSend<Edit>({
    send: async ({ base, value }) => {
      if ((await readSource(path)) !== base) throw new Error(codeWords.behind)
      return await medplum.post(`${path}/$deploy`, { code: value, filename })
    },
    done: codeWords.deployed,
    draft: key,
    after: (_, { value: base }) => settle(({ value }) => ({ base, value })),
    notify: false,
    // Code that was deployed meanwhile is shown next to the typed one.
    reread: [path, SOURCE],
  })
}

/** "… (line 2, column 13)" */
function parseErrorMarks(error: unknown): readonly Mark[] {
  return problemLines(error).flatMap(({ text }) => {
    const [, line, column] = /\(line (\d+), column (\d+)\)$/.exec(text) ?? []
    return line === undefined ? [] : [{ line: Number(line), column: Number(column), text }]
  })
}
