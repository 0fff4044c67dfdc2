/** One dead letter, with its error and links to its run, Subscription and record. */
import { Stack } from '@mantine/core'
import type { Parameters } from '@medplum/fhirtypes'
import { useParams } from 'wouter'
import { useGet } from '../../client/api.ts'
import { Problem } from '../../client/problem.tsx'
import { Empty, Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { Facts } from '../../parts/table.tsx'
import { TextLink } from '../../parts/text.tsx'
import { When } from '../../parts/when.tsx'
import words from '../../texts/dead-letters.json' with { type: 'json' }
import { type Letter, LetterActions, parseLetters } from './actions.tsx'
import { kindText } from './list.tsx'

const EVERY_MS = 5000

export function LetterPage() {
  const { id } = useParams<{ id: string }>()
  const found = useGet<Parameters>(`fhir/R4/Bot/$dead-letters?id=${id}`, { every: EVERY_MS })
  const isThere = found.data !== undefined && parseLetters(found.data).length > 0
  return (
    <Page
      title={words.letter}
      hint={id}
      trail={[{ label: words.title, href: '/dead-letters' }]}
      actions={isThere && <LetterActions filter={{ id }} isOne />}
    >
      <Loaded query={found}>
        {(data) => {
          const [letter] = parseLetters(data)
          if (letter === undefined) return <Empty title={words.gone} hint={words.goneHint} />
          return <Details letter={letter} />
        }}
      </Loaded>
    </Page>
  )
}

function Details({ letter }: { readonly letter: Letter }) {
  const { id, kind, target, subscription, focus, replayAt } = letter
  const [type, botId] = target.split('/')
  const rows: readonly (readonly [string, React.ReactNode])[] = [
    [words.kind, kindText(kind)],
    [
      words.target,
      type === 'Bot' ? (
        <TextLink key="bot" href={`/bots/${botId}`}>
          {target}
        </TextLink>
      ) : (
        target
      ),
    ],
    [
      words.subscription,
      subscription && (
        <TextLink key="s" href={`/resources/${subscription}`}>
          {subscription}
        </TextLink>
      ),
    ],
    [
      words.focus,
      focus && (
        <TextLink key="f" href={`/resources/${focus.split('/_history')[0]}`}>
          {focus}
        </TextLink>
      ),
    ],
    [words.attempts, letter.attempts],
    [words.added, <When key="added" at={letter.added} />],
    [words.failed, <When key="failed" at={letter.failed} />],
    [words.replayAt, replayAt && <When key="replay" at={replayAt} />],
    // The run of a delivery has another id.
    [
      words.run,
      kind !== 'delivery' && (
        <TextLink key="run" href={`/bots/${botId}/runs/${id}`}>
          {words.toRun}
        </TextLink>
      ),
    ],
  ]
  return (
    <Stack>
      {letter.error && <Problem error={letter.error} title={words.error} />}
      <Facts label={words.letter} rows={rows.filter(([, value]) => value)} />
    </Stack>
  )
}
