/**
 * Reads login → membership → project, profile and policies in as few statements as possible. Registry rows are in the
 * system project, the others in the membership's own.
 */

import { CLI_CLIENT, CONSOLE_CLIENT_ID } from '../access/credentials/clients.ts'
import { SYSTEM_PROJECT_NUMBER } from '../access/principal.ts'
import { exportsType, projectContext } from '../access/project-context.ts'
import { isResourceType, typeNumber } from '../fhir/definitions.ts'
import {
  asArray,
  isObject,
  parseReference,
  type Resource,
  referenceIn,
  targetIn,
} from '../fhir/resource.ts'
import { arrayLiteral, type Connection } from '../postgres/statement.ts'
import type { Keys } from '../store/index/keys.ts'
import { type OwnVersions, ownVersionsSql } from '../store/rows/custom-parameters.ts'

export interface MembershipContext {
  readonly project: Resource
  readonly number: number
  readonly own: OwnVersions
  readonly profile: Resource
  /** True for a Bot of a linked Project. */
  readonly isProfileLinked: boolean
  readonly policies: readonly Resource[]
  /** One entry per reference to a policy, with its parameters. */
  readonly access: readonly { readonly policy: Resource; readonly parameters: unknown }[]
  readonly missing: readonly string[]
  readonly configuration: Resource | undefined
  /** The stored app of the login, unless it is the profile. */
  readonly client: Resource | undefined
}

export interface MembershipRows {
  readonly database: Connection
  readonly keys: Keys
}

const UUID = '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'

/** One statement; `membership` is undefined when deleted. */
export async function readLoginMembership(
  { database, keys }: MembershipRows,
  loginId: string,
): Promise<{ login: Resource; membership: Resource | undefined } | undefined> {
  const rows = await database.query<{ login: string | null; membership: string | null }>({
    name: 'login-membership',
    text: `
      with login as materialized (
        select content from version
        where project = $1 and type = $2 and id = $3 order by ver desc limit 1),
      named as materialized (
        select split_part(content::json->'membership'->>'reference', '/', 2) as id from login
        where content is not null)
      select login.content as login, (
        select v.content from version v
        where v.project = $1 and v.type = $4
          and v.id = (select case when id ~ '${UUID}' then id::uuid end from named)
        order by v.ver desc limit 1) as membership
      from login`,
    values: [
      SYSTEM_PROJECT_NUMBER,
      typeNumber('Login'),
      keys.rowId('Login', loginId),
      typeNumber('ProjectMembership'),
    ],
  })
  const row = rows[0]
  if (typeof row?.login !== 'string') return undefined
  return { login: parse(row.login), membership: row.membership ? parse(row.membership) : undefined }
}

/** Finds memberships by profile `Type/id`, in the Project or in all, oldest first. One statement. */
export async function readProfileMemberships(
  { database, keys }: MembershipRows,
  reference: string,
  projectId: string | undefined,
): Promise<Resource[]> {
  const type = 'ProjectMembership'
  const referenceKey = (code: string, target: string) => {
    const base = keys.param(SYSTEM_PROJECT_NUMBER, type, code)
    return keys.reference(base, keys.target(SYSTEM_PROJECT_NUMBER, target))
  }
  const project = projectId === undefined ? undefined : `Project/${projectId}`
  const wanted = [
    referenceKey('profile', reference),
    ...(project === undefined ? [] : [referenceKey('project', project)]),
  ]
  const rows = await database.query<{ content: string }>({
    text: `
      select v.content from resource r join version v using (project, type, id, ver)
      where r.project = $1 and r.type = $2 and r.keys @> $3::bigint[]
      order by r.lu, r.id limit 100`,
    values: [SYSTEM_PROJECT_NUMBER, typeNumber(type), arrayLiteral(wanted)],
  })
  // Keys are hashes: the content decides.
  const found = rows.map((row) => parse(row.content))
  return found.filter(
    (membership) =>
      referenceIn(membership.profile) === reference &&
      (project === undefined || referenceIn(membership.project) === project),
  )
}

const contextSql = (
  project: string,
  types: string,
  ids: string,
) => `${ownVersionsSql(project)}, array(
        select (
          select v.content from version v
          where v.project = ${project} and v.type = w.type and v.id = w.id
          order by v.ver desc limit 1)
        from unnest(${types}::smallint[], ${ids}::uuid[]) with ordinality as w (type, id, place)
        order by w.place) as contents`

async function contextInSteps({ query }: Pick<Connection, 'query'>, values: readonly unknown[]) {
  const [systemProject, type, id, types, ids] = values
  const [tenant] = await query<{ number: number }>({
    text: 'select project as number from tenant where fhir_id = $1',
    values: [id],
  })
  const [filed] = await query<{ project: string | null }>({
    text: `select content as project from version where project = $1 and type = $2 and id = $3
      order by ver desc limit 1`,
    values: [systemProject, type, id],
  })
  if (tenant === undefined || filed === undefined) return []
  const [own] = await query({
    text: `select ${contextSql('$1::int', '$2', '$3')}`,
    values: [tenant.number, types, ids],
  })
  return [{ ...tenant, ...filed, ...own }]
}

/** $1: project number of Projects, $2: their type, $3: the Project, $4 and $5: types and row ids of the contents. */
const CONTEXT_SQL = `
      select t.project as number, p.content as project, ${contextSql('t.project', '$4', '$5')}
      from tenant t, lateral (
        select content from version
        where project = $1 and type = $2 and id = $3 order by ver desc limit 1) p
      where t.fhir_id = $3`

/**
 * Reads project, profile, policies, configuration and the app of a login in one statement; undefined when project,
 * profile or app is gone.
 */
export async function readContext(
  { database, keys }: MembershipRows,
  membership: Resource,
  login?: Resource,
): Promise<MembershipContext | undefined> {
  const project = targetIn(membership.project)
  const profile = targetIn(membership.profile)
  if (project === undefined || profile === undefined) return undefined
  if (!isResourceType(profile.type)) return undefined
  const named = namedPolicies(membership)
  const policies = storedPolicies(named)
  const configured = targetIn(membership.userConfiguration)
  const configurations = configured?.type === 'UserConfiguration' ? [configured] : []
  const app = storedApp(login)
  const apps = app === undefined || app.id === profile.id ? [] : [app]
  const wanted = [profile, ...policies, ...configurations, ...apps]
  const values = [
    SYSTEM_PROJECT_NUMBER,
    typeNumber('Project'),
    keys.rowId('Project', project.id),
    wanted.map((item) => typeNumber(item.type)),
    wanted.map((item) => keys.rowId(item.type, item.id)),
  ]
  const rows = await database.query<ProjectRow & { contents: (string | null)[] }>({
    name: 'membership-context',
    text: CONTEXT_SQL,
    values,
    inSteps: (connection) => contextInSteps(connection, values),
  })
  const row = rows[0]
  const [ownText, ...otherTexts] = row?.contents ?? []
  if (!row?.project) return undefined
  const profileText =
    ownText || (await readLinkedBot({ database, keys }, parse(row.project), profile))
  if (!profileText) return undefined
  const appText = apps.length === 0 ? undefined : otherTexts.at(-1)
  if (apps.length > 0 && !appText) return undefined
  const found = new Map(
    policies.flatMap(({ reference }, place): [string, Resource][] => {
      const text = otherTexts[place]
      return text ? [[reference, parse(text)]] : []
    }),
  )
  const configuration = configurations.length === 0 ? undefined : otherTexts[policies.length]
  return {
    project: parse(row.project),
    number: row.number,
    own: row,
    profile: parse(profileText),
    isProfileLinked: !ownText,
    policies: [...found.values()],
    access: named.flatMap(({ reference, parameters }) => {
      const policy = found.get(reference)
      return policy === undefined ? [] : [{ policy, parameters }]
    }),
    missing: named.flatMap(({ reference }) => (found.has(reference) ? [] : [reference])),
    configuration: configuration ? parse(configuration) : undefined,
    client: appText ? parse(appText) : undefined,
  }
}

function storedPolicies(named: readonly NamedPolicy[]) {
  return [...new Set(named.map(({ reference }) => reference))].flatMap((reference) => {
    const parsed = parseReference(reference)
    return parsed?.type === 'AccessPolicy' ? [{ ...parsed, reference }] : []
  })
}

/** Built-in apps are not stored. */
function storedApp(login: Resource | undefined) {
  const app = targetIn(login?.client)
  const isBuiltIn = app?.id === CLI_CLIENT.id || app?.id === CONSOLE_CLIENT_ID
  return app?.type === 'ClientApplication' && !isBuiltIn ? app : undefined
}

/**
 * Reads a Bot shared by a linked Project: removing the link, or the type from the exports, ends its access here. Super
 * admin Projects accept none.
 */
async function readLinkedBot(
  { database, keys }: MembershipRows,
  project: Resource,
  { type, id }: { readonly type: string; readonly id: string },
): Promise<string | undefined> {
  const { links = [], superAdmin } = projectContext(project, 0)
  if (type !== 'Bot' || superAdmin || links.length === 0) return undefined
  const places = links.map((link) => keys.rowId('Project', link))
  const rows = await database.query<{ project: string | null; bot: string | null }>({
    name: 'linked-bot',
    inSteps: async ({ query }) => {
      const found = await query<{ number: number; project: string }>({
        text: `select t.project as number, p.content as project from tenant t, lateral (
            select content from version
            where project = $1 and type = $2 and id = t.fhir_id order by ver desc limit 1) p
          where t.fhir_id = any($3::uuid[])`,
        values: [SYSTEM_PROJECT_NUMBER, typeNumber('Project'), places],
      })
      const botIn = (number: number) =>
        query<{ bot: string }>({
          text: `select content as bot from version
            where project = $1 and type = $2 and id = $3 order by ver desc limit 1`,
          values: [number, typeNumber('Bot'), keys.rowId('Bot', id)],
        })
      const bots = await Promise.all(found.map(({ number }) => botIn(number)))
      return found.map(({ project }, i) => ({ project, bot: bots[i]?.[0]?.bot ?? null }))
    },
    text: `
      select p.content as project, b.content as bot
      from tenant t, lateral (
        select content from version
        where project = $1 and type = $2 and id = t.fhir_id order by ver desc limit 1) p, lateral (
        select content from version
        where project = t.project and type = $3 and id = $4 order by ver desc limit 1) b
      where t.fhir_id = any($5::uuid[])`,
    values: [
      SYSTEM_PROJECT_NUMBER,
      typeNumber('Project'),
      typeNumber('Bot'),
      keys.rowId('Bot', id),
      places,
    ],
  })
  const shared = rows.find(
    (row) => row.project && row.bot && exportsType(parse(row.project), 'Bot'),
  )
  return shared?.bot ?? undefined
}

interface ProjectRow extends OwnVersions {
  readonly number: number
  readonly project: string | null
}

/** One statement; undefined without such a Project. */
export async function readProject(
  { database, keys }: MembershipRows,
  id: string,
): Promise<Pick<MembershipContext, 'project' | 'number' | 'own'> | undefined> {
  const values = [SYSTEM_PROJECT_NUMBER, typeNumber('Project'), keys.rowId('Project', id)]
  const rows = await database.query<ProjectRow>({
    name: 'project-context',
    text: `
      select t.project as number, v.content as project, ${ownVersionsSql('t.project')}
      from tenant t join version v on v.project = $1 and v.type = $2 and v.id = t.fhir_id
      where t.fhir_id = $3 order by v.ver desc limit 1`,
    values,
    inSteps: (connection) => contextInSteps(connection, [...values, [], []]),
  })
  const row = rows[0]
  return row?.project ? { project: parse(row.project), number: row.number, own: row } : undefined
}

interface NamedPolicy {
  readonly reference: string
  readonly parameters: unknown
}

/** `accessPolicy`, the older form, comes first. */
function namedPolicies(membership: Resource): readonly NamedPolicy[] {
  const named = asArray(membership.access).map((item) => (isObject(item) ? item : {}))
  const older = membership.accessPolicy === undefined ? [] : [{ policy: membership.accessPolicy }]
  return [...older, ...named].map((item: Record<string, unknown>) => ({
    reference: referenceIn(item.policy) ?? 'policy',
    parameters: item.parameter,
  }))
}

export function policyReferences(membership: Resource): string[] {
  return namedPolicies(membership).map(({ reference }) => reference)
}

function parse(content: string): Resource {
  return JSON.parse(content) as Resource
}
