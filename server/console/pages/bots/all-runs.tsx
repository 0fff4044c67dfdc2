/** The runs of all bots. */
import { Select } from '@mantine/core'
import type { Bot, Bundle } from '@medplum/fhirtypes'
import { useGet } from '../../client/api.ts'
import { Page } from '../../parts/page.tsx'
import { texts } from '../../texts/texts.ts'
import { RunList, useSelection } from './run-list.tsx'

const words = texts.bots.runs

export function AllRuns() {
  const { selection, select } = useSelection()
  const bots = useGet<Bundle<Bot>>('fhir/R4/Bot?_count=1000&_sort=name&_elements=name')
  const choices = (bots.data?.entry ?? []).flatMap(({ resource }) =>
    resource?.id ? [{ value: resource.id, label: resource.name ?? resource.id }] : [],
  )
  return (
    <Page title={words.title} hint={words.hint}>
      <RunList key={selection.bot} botId={selection.bot}>
        <Select
          label={words.bot}
          placeholder={words.allBots}
          data={choices}
          value={selection.bot ?? null}
          onChange={(bot) => select({ bot: bot ?? undefined })}
          searchable
          clearable
        />
      </RunList>
    </Page>
  )
}
