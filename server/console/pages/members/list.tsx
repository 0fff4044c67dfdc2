/** Members of the project: people, clients and bots, each kind at its own address. */
import { Badge, Button, Group } from '@mantine/core'
import type { ProjectMembership } from '@medplum/fhirtypes'
import { Link, useParams } from 'wouter'
import { useMe } from '../../client/session.ts'
import { Empty } from '../../parts/loaded.tsx'
import { Page, Views } from '../../parts/page.tsx'
import { PagedTable } from '../../parts/query-table.tsx'
import type { Column } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { texts } from '../../texts/texts.ts'
import { usePolicies } from './access.tsx'
import { AccountState } from './account.tsx'

const STEP = 50
const KINDS = ['people', 'clients', 'bots'] as const
const TYPES = {
  people: 'Practitioner,Patient,RelatedPerson',
  clients: 'ClientApplication',
  bots: 'Bot',
} as const

export function Members() {
  const { kind: asked } = useParams<{ kind?: string }>()
  const kind = KINDS.find((name) => name === asked) ?? 'people'
  return (
    <Page title={texts.members.title} hint={texts.members.hint} actions={<Actions />}>
      <Views names={KINDS} labels={texts.members.kinds} open={kind} address="/members">
        <List key={kind} kind={kind} />
      </Views>
    </Page>
  )
}

function Actions() {
  return (
    <>
      <Button component={Link} href="/members/invite">
        {texts.members.invite}
      </Button>
      <Button component={Link} href="/members/new-client" variant="default">
        {texts.members.newClient}
      </Button>
    </>
  )
}

function List({ kind }: { readonly kind: (typeof KINDS)[number] }) {
  const { project } = useMe()
  const query = `profile-type=${TYPES[kind]}&_sort=-_lastUpdated&_count=${STEP}`
  return (
    <PagedTable<ProjectMembership, ProjectMembership>
      path={`admin/projects/${project.id}/members?${query}`}
      label={texts.members.kinds[kind]}
      rows={(member) => [member]}
      columns={kind === 'people' ? [...columns, stateColumn] : columns}
      rowKey={({ id }) => id ?? ''}
      linkOf={({ id }) => `/members/member/${id}`}
      empty={<Empty title={texts.members.empty[kind]} hint={texts.members.emptyHint[kind]} />}
    />
  )
}

const columns: readonly Column<ProjectMembership>[] = [
  { name: texts.members.name, cell: profileDisplayName },
  { name: texts.members.role, cell: (member) => <Roles member={member} /> },
  { name: texts.members.policies, cell: (member) => <Policies member={member} /> },
  { name: texts.members.changed, cell: ({ meta }) => <When at={meta?.lastUpdated} /> },
]

const stateColumn: Column<ProjectMembership> = {
  name: texts.account.state,
  cell: ({ id }) => <AccountState id={id} />,
}

export function profileDisplayName({ profile }: ProjectMembership): string {
  return profile?.display ?? profile?.reference ?? ''
}

interface MemberProps {
  readonly member: ProjectMembership
}

/** Names of the policies in force. */
export function Policies({ member: { accessPolicy, access = [], profile } }: MemberProps) {
  const { policies } = usePolicies()
  const given = [accessPolicy, ...access.map(({ policy }) => policy)].flatMap((one) => one ?? [])
  const names = given.map(
    ({ reference }) => policies.find(({ value }) => value === reference)?.label ?? reference,
  )
  const isPatient = /^(Patient|RelatedPerson)\//.test(profile?.reference ?? '')
  const none = isPatient ? texts.members.builtInPolicy : texts.members.allRecords
  return <>{names.join(', ') || none}</>
}

export function Roles({ member: { admin, active } }: MemberProps) {
  return (
    <Group gap={4}>
      <Badge variant="light" color={admin ? 'grape' : 'gray'}>
        {admin ? texts.members.admin : texts.members.plain}
      </Badge>
      {active === false && (
        <Badge variant="dot" color="orange">
          {texts.members.inactive}
        </Badge>
      )}
    </Group>
  )
}
