/** A record as a form that its StructureDefinition makes. */
import { Button, Stack } from '@mantine/core'
import { Problem } from '../../parts/problem.tsx'
import { texts } from '../../texts/texts.ts'
import type { Editing } from './editing.ts'
import { Fields } from './fields.tsx'

export function RecordForm({ draft, save, isBusy, error }: Editing) {
  const { resourceType } = draft.value
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        save?.(draft.value)
      }}
    >
      <Stack maw={720}>
        <fieldset disabled={save === undefined} style={{ border: 0, padding: 0, margin: 0 }}>
          <Fields
            type={resourceType}
            path={resourceType}
            value={{ ...draft.value }}
            // The fields keep the type and the id.
            onChange={(value) => draft.set(value as unknown as typeof draft.value)}
          />
        </fieldset>
        <Problem error={error} title={texts.record.refused} />
        {save && (
          <Button type="submit" id="save" loading={isBusy} w="fit-content">
            {texts.common.save}
          </Button>
        )}
      </Stack>
    </form>
  )
}
