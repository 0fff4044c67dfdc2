/** One access policy: its text, and a preview of a member's access. */
import { NativeSelect, Paper, Stack, Text, Title } from '@mantine/core'
import { badRequest, OperationOutcomeError } from '@medplum/core'
import type { AccessPolicy, Bundle, ProjectMembership } from '@medplum/fhirtypes'
import { useState } from 'react'
import { useLocation, useParams } from 'wouter'
import { useGet, useSend } from '../../client/api.ts'
import { medplum, useMe } from '../../client/session.ts'
import { Confirm } from '../../parts/confirm.tsx'
import { Editor, jsonText } from '../../parts/editor.tsx'
import { Form } from '../../parts/form.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { fill, texts } from '../../texts/texts.ts'
import { Explain } from '../members/explain.tsx'

const words = texts.policies
const fresh: AccessPolicy = {
  resourceType: 'AccessPolicy',
  name: '',
  resource: [
    { resourceType: 'Patient', criteria: 'Patient?organization=%organization' },
    { resourceType: 'Observation', readonly: true },
  ],
}

export function PolicyPage() {
  const { id = 'new' } = useParams<{ id: string }>()
  const isNew = id === 'new'
  const found = useGet<AccessPolicy>(`fhir/R4/AccessPolicy/${id}`, { enabled: !isNew })
  if (isNew) {
    return (
      <Page title={words.create} hint={words.hint}>
        <PolicyForm policy={fresh} />
      </Page>
    )
  }
  return (
    <Loaded query={found}>
      {(policy) => (
        <Page title={policy.name ?? id} hint={words.hint} actions={<Remove id={id} />}>
          <PolicyForm policy={policy} />
          <Try />
        </Page>
      )}
    </Loaded>
  )
}

interface FormProps {
  readonly policy: AccessPolicy
}

function PolicyForm({ policy }: FormProps) {
  const [, go] = useLocation()
  return (
    <Form
      key={policy.meta?.versionId}
      name={`policy:${policy.id}:${policy.meta?.versionId}`}
      saved={{ text: JSON.stringify(policy, null, 2) }}
      send={({ text }) => write(policy, text)}
      done={texts.common.saved}
      after={({ id }) => go(`/policies/${id}`)}
    >
      {({ values, set }) => (
        <Editor
          label={words.editor}
          extensions={jsonText}
          height="auto"
          value={values.text}
          onChange={(text) => set({ text })}
        />
      )}
    </Form>
  )
}

/** Rejected after a concurrent change. */
async function write({ id, meta }: AccessPolicy, text: string): Promise<AccessPolicy> {
  const policy: unknown = parsed(text)
  if (id === undefined) return await medplum.post('fhir/R4/AccessPolicy', policy)
  const version = `W/"${meta?.versionId}"`
  const headers = { 'If-Match': version }
  return await medplum.put(`fhir/R4/AccessPolicy/${id}`, policy, undefined, { headers })
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    const problem = error instanceof Error ? error.message : ''
    throw new OperationOutcomeError(badRequest(fill(words.invalid, { problem })))
  }
}

interface RemoveProps {
  readonly id: string
}

function Remove({ id }: RemoveProps) {
  const [, go] = useLocation()
  const remove = useSend({
    send: () => medplum.delete(`fhir/R4/AccessPolicy/${id}`),
    done: words.deleted,
    after: () => go('/policies'),
  })
  return (
    <Confirm label={words.delete} confirm={words.delete} onConfirm={() => remove.mutate()}>
      <Text size="sm">{words.deleteHint}</Text>
    </Confirm>
  )
}

function Try() {
  const { project } = useMe()
  const [member, setMember] = useState('')
  const found = useGet<Bundle<ProjectMembership>>(
    `admin/projects/${project.id}/members?_count=1000&_sort=-_lastUpdated`,
  )
  const members = (found.data?.entry ?? []).map(({ resource }) => ({
    value: `ProjectMembership/${resource?.id}`,
    label: resource?.profile?.display ?? resource?.profile?.reference ?? '',
  }))
  return (
    <Paper withBorder p="md">
      <Title order={2} size="h4" mb="sm">
        {texts.explain.title}
      </Title>
      <Stack>
        <NativeSelect
          label={words.member}
          description={words.memberHint}
          data={[{ value: '', label: words.noMember }, ...members]}
          value={member}
          onChange={({ currentTarget }) => setMember(currentTarget.value)}
        />
        {member !== '' && <Explain key={member} member={member} />}
      </Stack>
    </Paper>
  )
}
