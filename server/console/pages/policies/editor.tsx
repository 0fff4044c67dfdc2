/** The editor of a policy: a form of its entries, and its JSON. Both change the same text. */
import { Button, Group, NativeSelect, Stack, Tabs, Text, TextInput } from '@mantine/core'
import type { AccessPolicy, AccessPolicyResource } from '@medplum/fhirtypes'
import { lazy, Suspense } from 'react'
import { parsePolicy, policyParameters, policyText } from '../../client/policies.ts'
import { Problem } from '../../client/problem.tsx'
import { useNames } from '../../parts/form.tsx'
import { Waiting } from '../../parts/loaded.tsx'
import { Hint } from '../../parts/text.tsx'
import { texts } from '../../texts/texts.ts'
import { EntryFields } from './entry.tsx'
import { policyFrom, TEMPLATE_NAMES } from './templates.ts'

const words = texts.policies
const JsonTab = lazy(async () => ({ default: (await import('./json.tsx')).JsonTab }))

interface Props {
  readonly text: string
  readonly isNew: boolean
  readonly onChange: (text: string) => void
}

interface EditorProps extends Props {
  readonly tab: string | null
  readonly onTab: (tab: string | null) => void
}

export function PolicyEditor({ text, isNew, onChange, tab, onTab }: EditorProps) {
  return (
    <Tabs value={tab} onChange={onTab} keepMounted={false}>
      <Tabs.List mb="md">
        <Tabs.Tab value="form">{words.form}</Tabs.Tab>
        <Tabs.Tab value="json">{words.json}</Tabs.Tab>
      </Tabs.List>
      <Tabs.Panel value="form">
        <FormTab text={text} isNew={isNew} onChange={onChange} />
      </Tabs.Panel>
      <Tabs.Panel value="json">
        <Suspense fallback={<Waiting />}>
          <JsonTab text={text} onChange={onChange} />
        </Suspense>
      </Tabs.Panel>
    </Tabs>
  )
}

function FormTab({ text, isNew, onChange }: Props) {
  const { policy, error } = readDraft(text)
  if (policy === undefined) return <Problem error={error} title={words.notShown} />
  const write = (next: AccessPolicy) => onChange(policyText(next))
  return (
    <Stack>
      {isNew && <TemplateField policy={policy} onChange={write} />}
      <TextInput
        required
        label={words.name}
        name="name"
        value={policy.name ?? ''}
        onChange={({ currentTarget }) => write({ ...policy, name: currentTarget.value })}
      />
      <Entries policy={policy} onChange={write} />
    </Stack>
  )
}

function readDraft(text: string): { readonly policy?: AccessPolicy; readonly error?: unknown } {
  try {
    return { policy: parsePolicy(text) }
  } catch (error) {
    return { error }
  }
}

interface PolicyProps {
  readonly policy: AccessPolicy
  readonly onChange: (policy: AccessPolicy) => void
}

function TemplateField({ policy, onChange }: PolicyProps) {
  const entries = JSON.stringify(policy.resource ?? [])
  const chosen = TEMPLATE_NAMES.find(
    (name) => JSON.stringify(policyFrom(name).resource) === entries,
  )
  return (
    <NativeSelect
      label={words.template}
      description={chosen ? words.templates[chosen].hint : words.templateHint}
      name="template"
      data={[
        ...(chosen ? [] : [{ value: '', label: words.ownTemplate }]),
        ...TEMPLATE_NAMES.map((value) => ({ value, label: words.templates[value].name })),
      ]}
      value={chosen ?? ''}
      onChange={({ currentTarget }) => {
        const name = TEMPLATE_NAMES.find((one) => one === currentTarget.value)
        if (name) onChange(policyFrom(name))
      }}
    />
  )
}

function Entries({ policy, onChange }: PolicyProps) {
  const { resource = [] } = policy
  const { names, drop } = useNames(resource.length)
  const parameters = policyParameters(policy)
  const write = (next: readonly AccessPolicyResource[]) =>
    onChange({ ...policy, resource: [...next] })
  const move = (from: number, to: number) => {
    const entry = resource[from]
    if (entry) write(resource.toSpliced(from, 1).toSpliced(to, 0, entry))
  }
  return (
    <>
      <Hint>{words.order}</Hint>
      {resource.map((entry, place) => (
        <EntryFields
          key={names[place]}
          place={place}
          count={resource.length}
          entry={entry}
          parameters={parameters}
          onChange={(next) => write(resource.with(place, next))}
          onRemove={() => {
            drop(place)
            write(resource.toSpliced(place, 1))
          }}
          onMove={(to) => move(place, to)}
        />
      ))}
      {resource.length === 0 && <Text size="sm">{words.noEntry}</Text>}
      <Group>
        <Button
          variant="default"
          size="xs"
          // The type is chosen in the form of the entry.
          onClick={() => write([...resource, { resourceType: '' } as AccessPolicyResource])}
        >
          {words.addEntry}
        </Button>
      </Group>
    </>
  )
}
