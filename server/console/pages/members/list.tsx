/** The members of the project: people, clients and bots, each kind at an address of its own. */
import { Badge, Button, Group, Tabs } from '@mantine/core'
import type { Bundle, ProjectMembership } from '@medplum/fhirtypes'
import { useState } from 'react'
import { Link, useLocation, useParams } from 'wouter'
import { useGet } from '../../api.ts'
import { Empty } from '../../parts/empty.tsx'
import { Loaded } from '../../parts/loaded.tsx'
import { Page } from '../../parts/page.tsx'
import { type Column, DataTable } from '../../parts/table.tsx'
import { When } from '../../parts/when.tsx'
import { useMe } from '../../session.ts'
import { texts } from '../../texts/texts.ts'

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
  const [, go] = useLocation()
  return (
    <Page title={texts.members.title} hint={texts.members.hint} actions={<Actions />}>
      <Tabs value={kind} onChange={(name) => go(`/members/${name}`)}>
        <Tabs.List>
          {KINDS.map((name) => (
            <Tabs.Tab key={name} value={name}>
              {texts.members.kinds[name]}
            </Tabs.Tab>
          ))}
        </Tabs.List>
        <Tabs.Panel value={kind} pt="md">
          <List key={kind} kind={kind} />
        </Tabs.Panel>
      </Tabs>
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

interface ListProps {
  readonly kind: (typeof KINDS)[number]
}

function List({ kind }: ListProps) {
  const { project } = useMe()
  const [count, setCount] = useState(STEP)
  const found = useGet<Bundle<ProjectMembership>>(
    `admin/projects/${project.id}/members?profile-type=${TYPES[kind]}&_sort=-_lastUpdated&_count=${count}`,
  )
  return (
    <Loaded query={found}>
      {({ entry = [], link = [] }) => (
        <>
          <DataTable
            label={texts.members.kinds[kind]}
            rows={entry.flatMap(({ resource }) => resource ?? [])}
            columns={columns}
            keyOf={({ id }) => id ?? ''}
            linkOf={({ id }) => `/members/member/${id}`}
            empty={<Empty title={texts.members.empty[kind]} hint={texts.members.emptyHint[kind]} />}
          />
          {link.some(({ relation }) => relation === 'next') && (
            <Button variant="default" onClick={() => setCount(count + STEP)}>
              {texts.common.more}
            </Button>
          )}
        </>
      )}
    </Loaded>
  )
}

const columns: readonly Column<ProjectMembership>[] = [
  { name: texts.members.name, cell: nameOf },
  { name: texts.members.role, cell: (member) => <Roles member={member} /> },
  { name: texts.members.policies, cell: policiesOf },
  { name: texts.members.changed, cell: ({ meta }) => <When at={meta?.lastUpdated} /> },
]

/** As the profile is called, else its reference. */
export function nameOf({ profile }: ProjectMembership): string {
  return profile?.display ?? profile?.reference ?? ''
}

function policiesOf({ accessPolicy, access = [] }: ProjectMembership): string {
  const policies = [accessPolicy, ...access.map(({ policy }) => policy)].flatMap((one) => one ?? [])
  const names = policies.map(({ display, reference }) => display ?? reference ?? '')
  return names.join(', ') || texts.members.noPolicy
}

interface RolesProps {
  readonly member: ProjectMembership
}

export function Roles({ member: { admin, active } }: RolesProps) {
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
