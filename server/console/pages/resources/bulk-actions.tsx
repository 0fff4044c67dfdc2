/** Actions on the selected rows of a list of records. */
import { Button, Group, Text } from '@mantine/core'
import type { Bundle, Resource } from '@medplum/fhirtypes'
import { useSend } from '../../client/api.ts'
import { keepsDigits } from '../../client/exact.ts'
import { mayDo, medplum, useMe } from '../../client/session.ts'
import { ConfirmedAction } from '../../parts/action.tsx'
import { saveText } from '../../parts/save.ts'
import type { Selection } from '../../parts/table.tsx'
import { fill, texts } from '../../texts/texts.ts'

const words = texts.selection

interface Props {
  readonly type: string
  readonly selection: Selection<Resource>
}

export function BulkActions({ type, selection: { rows, set } }: Props) {
  const me = useMe()
  const save = useSend({ send: async () => saveRows(type, rows) })
  return (
    <Group role="status">
      <Text size="sm">{fill(words.selected, { count: rows.length })}</Text>
      <Button variant="default" size="xs" onClick={() => save.mutate()}>
        {words.save}
      </Button>
      {mayDo(me, type, 'delete') && (
        <ConfirmedAction
          label={words.delete}
          confirm={fill(words.deleteAll, { count: rows.length })}
          send={() => deleteAll(rows)}
          done={fill(words.deleted, { count: rows.length })}
          after={() => set([])}
        >
          <Text size="sm">{words.deleteHint}</Text>
        </ConfirmedAction>
      )}
      <Button variant="subtle" size="xs" onClick={() => set([])}>
        {words.none}
      </Button>
    </Group>
  )
}

/** Errors: a browser that has rounded the numbers of the rows. */
function saveRows(type: string, rows: readonly Resource[]): void {
  if (!keepsDigits) throw new Error(texts.app.oldBrowser)
  const lines = rows.map((row) => `${JSON.stringify(row)}\n`)
  saveText(lines.join(''), `${type}.ndjson`, 'application/fhir+ndjson')
}

/** All or none. Errors: those of the service, with its words for the first record that it keeps. */
async function deleteAll(rows: readonly Resource[]): Promise<void> {
  await medplum.executeBatch({
    resourceType: 'Bundle',
    type: 'transaction',
    entry: rows.map(({ resourceType, id }) => ({
      request: { method: 'DELETE' as const, url: `${resourceType}/${id}` },
    })),
  } satisfies Bundle)
}
