/** One member: rights, access preview and client secrets. */
import { Stack, Text } from '@mantine/core'
import type { ProjectMembership } from '@medplum/fhirtypes'
import { useLocation, useParams } from 'wouter'
import { replaceVersion, useGet } from '../../client/api.ts'
import { medplum, useMe } from '../../client/session.ts'
import { Action, ConfirmedAction } from '../../parts/action.tsx'
import { Form } from '../../parts/form.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Page, Section } from '../../parts/page.tsx'
import explain from '../../texts/explain.json' with { type: 'json' }
import { fill, texts } from '../../texts/texts.ts'
import { AccessFields, toAccessElements, toAccessForm } from './access.tsx'
import { AccountPart } from './account.tsx'
import { ClientPart } from './client.tsx'
import { Explain } from './explain.tsx'
import { Policies, profileDisplayName, Roles } from './list.tsx'

const words = texts.members

export function MemberPage() {
  const { id } = useParams<{ id: string }>()
  const { project } = useMe()
  const address = `admin/projects/${project.id}/members/${id}`
  const found = useGet<ProjectMembership>(address)
  return (
    <Loaded query={found}>
      {(member) => (
        <Page
          title={profileDisplayName(member)}
          hint={<Roles member={member} />}
          actions={<Actions member={member} address={address} />}
        >
          <Member member={member} address={address} />
        </Page>
      )}
    </Loaded>
  )
}

const PEOPLE = ['Practitioner', 'Patient', 'RelatedPerson']

interface Props {
  readonly member: ProjectMembership
  readonly address: string
}

function Member({ member, address }: Props) {
  const [type, id = ''] = member.profile?.reference?.split('/') ?? []
  const { admin: _, accessPolicy: __, access: ___, ...others } = member
  return (
    <Stack maw={900} gap="lg">
      {PEOPLE.includes(type ?? '') && (
        <Section title={texts.account.title}>
          <AccountPart id={member.id} />
        </Section>
      )}
      <Section title={words.rights}>
        <Text size="sm" mb="sm">
          {words.inForce} <Policies member={member} />
        </Text>
        <Form
          key={member.id}
          name={`member:${member.id}`}
          saved={toAccessForm(member)}
          edits={{ path: address, version: member.meta?.versionId }}
          send={(values, { version }) =>
            replaceVersion<ProjectMembership>(
              address,
              { ...others, ...toAccessElements(values, member) },
              version,
            )
          }
          done={texts.common.saved}
        >
          {(fields) => <AccessFields fields={fields} />}
        </Form>
      </Section>
      {type === 'ClientApplication' && (
        <Section title={words.client}>
          <ClientPart id={id} />
        </Section>
      )}
      <Section title={explain.title}>
        <Explain member={`ProjectMembership/${member.id}`} />
      </Section>
    </Stack>
  )
}

function Actions({ member, address }: Props) {
  const [, go] = useLocation()
  const isActive = member.active !== false
  const name = profileDisplayName(member)
  const change = {
    send: () => medplum.patch(address, [{ op: 'add', path: '/active', value: !isActive }]),
    done: isActive ? words.deactivated : words.activated,
  }
  return (
    <>
      {isActive ? (
        <ConfirmedAction label={words.deactivate} confirm={words.deactivate} {...change}>
          <Text size="sm">{fill(words.deactivateHint, { name })}</Text>
        </ConfirmedAction>
      ) : (
        <Action {...change}>{words.activate}</Action>
      )}
      <ConfirmedAction
        label={words.remove}
        confirm={words.remove}
        send={() => medplum.delete(address)}
        done={words.removed}
        after={() => go('/members')}
      >
        <Text size="sm">{fill(words.removeHint, { name })}</Text>
      </ConfirmedAction>
    </>
  )
}
