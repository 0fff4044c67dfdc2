/** One access policy: its editor, and a preview of a member's access. */
import { NativeSelect, Stack, Text } from '@mantine/core'
import type { AccessPolicy, Bundle, ProjectMembership } from '@medplum/fhirtypes'
import { useState } from 'react'
import { useLocation, useParams } from 'wouter'
import { replaceVersion, useGet } from '../../client/api.ts'
import { conflicts, mapVersions, merged } from '../../client/merging.ts'
import { completePolicy, parsePolicy, policyText } from '../../client/policies.ts'
import { medplum, useMe } from '../../client/session.ts'
import { ConfirmedAction } from '../../parts/action.tsx'
import { Form, type Merging } from '../../parts/form.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Page, Section } from '../../parts/page.tsx'
import explain from '../../texts/explain.json' with { type: 'json' }
import { texts } from '../../texts/texts.ts'
import { Explain } from '../members/explain.tsx'
import { PolicyEditor } from './editor.tsx'
import { policyFrom } from './templates.ts'

const words = texts.policies
export function PolicyPage() {
  const { id = 'new' } = useParams<{ id: string }>()
  const isNew = id === 'new'
  const found = useGet<AccessPolicy>(`fhir/R4/AccessPolicy/${id}`, { enabled: !isNew })
  if (isNew) {
    return (
      <Page title={words.create} hint={words.hint}>
        <PolicyForm policy={policyFrom('empty')} />
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

function PolicyForm({ policy }: { readonly policy: AccessPolicy }) {
  const [, go] = useLocation()
  const [tab, setTab] = useState<string | null>('form')
  return (
    <Form
      key={policy.id}
      name={`policy:${policy.id}`}
      saved={{ text: policyText(policy) }}
      {...(policy.id === undefined ? {} : { edits: toEdited(policy) })}
      send={({ text }, { version }) => write(policy.id, text, version)}
      done={texts.common.saved}
      after={({ id }) => go(`/policies/${id}`)}
    >
      {({ values, set }) => (
        <PolicyEditor
          text={values.text}
          isNew={policy.id === undefined}
          tab={tab}
          onTab={setTab}
          onChange={(text) => set({ text })}
        />
      )}
    </Form>
  )
}

async function write(
  id: string | undefined,
  text: string,
  version: string | undefined,
): Promise<AccessPolicy> {
  const policy = completePolicy(text)
  if (id === undefined) return await medplum.post('fhir/R4/AccessPolicy', policy)
  return await replaceVersion(`fhir/R4/AccessPolicy/${id}`, policy, version)
}

interface Typed {
  readonly text: string
}

function toEdited({ id, meta }: AccessPolicy) {
  return { path: `fhir/R4/AccessPolicy/${id}`, version: meta?.versionId, merging: MERGING }
}

const MERGING: Merging<Typed> = {
  both(versions) {
    try {
      return conflicts(mapVersions(versions, parse))
    } catch {
      return undefined
    }
  },
  merge: (versions) => ({ text: policyText(merged(mapVersions(versions, parse))) }),
  format: ({ text }) => text,
}

function parse({ text }: Typed): AccessPolicy {
  return parsePolicy(text)
}

function Remove({ id }: { readonly id: string }) {
  const [, go] = useLocation()
  return (
    <ConfirmedAction
      label={words.delete}
      confirm={words.delete}
      send={() => medplum.delete(`fhir/R4/AccessPolicy/${id}`)}
      done={words.deleted}
      after={() => go('/policies')}
    >
      <Text size="sm">{words.deleteHint}</Text>
    </ConfirmedAction>
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
    <Section title={explain.title}>
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
    </Section>
  )
}
