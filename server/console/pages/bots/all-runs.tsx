/** The runs of all bots. */
import { BotSelect } from '../../parts/bots.tsx'
import { Page } from '../../parts/page.tsx'
import { texts } from '../../texts/texts.ts'
import { RunList, useSelection } from './run-list.tsx'

const words = texts.bots.runs

export function AllRuns() {
  const { selection, select } = useSelection()
  return (
    <Page title={words.title} hint={words.hint}>
      <RunList key={selection.bot} botId={selection.bot}>
        <BotSelect
          label={words.bot}
          placeholder={words.allBots}
          value={selection.bot ?? null}
          onChange={(bot) => select({ bot: bot ?? undefined })}
          clearable
        />
      </RunList>
    </Page>
  )
}
