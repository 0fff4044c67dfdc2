/** Projects: created by super admins, read and changed by their administrators. */

import {
  type Principal,
  type ProjectContext,
  servicePrincipal,
} from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { readBotStats, readLanes } from '../../../shared/bots/stats.ts'
import { badRequest, forbidden, type Issue, invalid, issue } from '../../../shared/core/errors.ts'
import { isObject, type Resource } from '../../../shared/fhir/resource.ts'
import { checkBot } from '../../../shared/fhir/schedule.ts'
import { defined, Fields } from '../../../shared/projects/fields.ts'
import { administeredProject, requireUnlessLimited } from '../../../shared/projects/ownership.ts'
import {
  createBot,
  createClient,
  newProject,
  requireOwnPolicies,
} from '../../../shared/projects/provision.ts'
import { changeAudited, givenFields } from '../../../shared/request/admin-audit.ts'
import { projectLoad } from '../../../shared/request/quota.ts'
import type { Services } from '../../../shared/request/services.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { WriteOptions, WriteResult } from '../../../shared/store/rows/version.ts'
import { requireProviderRight } from '../../../shared/store/write/authorize.ts'
import { requireValid } from '../../../shared/validation/validate.ts'

/** Fields of a Project that its administrators replace as a whole. */
type ProjectList = 'secret' | 'setting' | 'site'

const SETTING_VALUES = ['valueString', 'valueBoolean', 'valueDecimal', 'valueInteger']

/** Errors: 403, 400. */
export async function createProject(
  { repository, config }: Services,
  caller: Principal,
  body: Record<string, unknown>,
): Promise<WriteResult> {
  if (!caller.isSuperAdmin) throw forbidden()
  requireUnlessLimited(caller, ['Project', 'create'])
  const project = newProject(body, config)
  requireValid(project, { strict: true })
  return await changeAudited(repository, caller, {
    make: (inside) => inside.create(caller, project),
    record: ({ id }) => ({
      project: caller.project,
      interaction: 'create',
      target: `Project/${id}`,
      fields: givenFields(project),
    }),
  })
}

/** Includes the load units used in this minute if there is a quota. Errors: 403, 404. */
export async function readProject(
  { repository, principals, load }: Services,
  caller: Principal,
  projectId: string,
) {
  const { quota } = await administeredProject(principals, caller, projectId, ['Project', 'read'])
  const version = await repository.read(
    servicePrincipal(SYSTEM_PROJECT, caller),
    'Project',
    projectId,
  )
  const { id, name, secret, site, setting, systemSetting, features } = parseVersion(version)
  const versionId = String(version.ver)
  return {
    project: { id, meta: { versionId }, name, secret, site, setting, systemSetting, features },
    ...(quota === undefined ? {} : { load: projectUsage(load, projectId, quota) }),
  }
}

/** Reads usage at no cost. A negative limit means unlimited. */
function projectUsage(
  load: Services['load'],
  projectId: string,
  { member, project }: NonNullable<ProjectContext['quota']>,
) {
  const { remaining } = load.spend(projectLoad(projectId), 0, project)
  return { memberLimit: member, limit: project, used: project - remaining }
}

interface ListReplacement {
  readonly projectId: string
  readonly list: ProjectList
  readonly body: unknown
  readonly options: WriteOptions
}

/** Errors: 403, 404, 400 with one issue per item, 412. */
export async function replaceProjectList(
  { repository, principals }: Services,
  caller: Principal,
  { projectId, list, body, options }: ListReplacement,
): Promise<WriteResult> {
  const project = await administeredProject(principals, caller, projectId, ['Project', 'update'])
  const items = checkedItems(list, body)
  const actor = servicePrincipal(SYSTEM_PROJECT, caller)
  const replace = (current: Resource) => {
    const { [list]: _, ...rest } = current
    // FHIR does not allow empty arrays, so the element is removed.
    const next = (items.length === 0 ? rest : { ...rest, [list]: items }) as Resource
    requireValid(next, { strict: true })
    return next
  }
  return await changeAudited(repository, caller, {
    make: (inside) => inside.patch(actor, { type: 'Project', id: projectId }, replace, options),
    record: {
      project,
      interaction: 'update',
      target: `Project/${projectId}`,
      fields: [list],
    },
  })
}

function checkedItems(list: ProjectList, body: unknown): readonly unknown[] {
  if (!Array.isArray(body)) throw badRequest(`Content must be an array of ${list} items`)
  const issues = body.flatMap((item, index): Issue[] => {
    const problem = list === 'site' ? siteProblem(item) : settingProblem(item)
    return problem === undefined
      ? []
      : [issue('error', 'invalid', problem, { expression: `${list}[${index}]` })]
  })
  if (issues.length > 0) throw invalid(issues)
  return body
}

function settingProblem(item: unknown): string | undefined {
  if (!isObject(item) || typeof item.name !== 'string' || item.name === '') {
    return 'A setting needs a name'
  }
  const values = SETTING_VALUES.filter((name) => item[name] !== undefined)
  return values.length > 1 ? `Setting ${item.name} has several values` : undefined
}

function siteProblem(item: unknown): string | undefined {
  if (!isObject(item) || typeof item.name !== 'string' || item.name === '') {
    return 'A site needs a name'
  }
  const { domain } = item
  const isList = Array.isArray(domain) && domain.every((name) => typeof name === 'string')
  return isList && domain.length > 0 ? undefined : `Site ${item.name} needs a list of domains`
}

/** Errors: 403, 404, 400 with one issue per field. */
export async function addClient(
  { repository, principals }: Services,
  caller: Principal,
  projectId: string,
  body: Record<string, unknown>,
): Promise<WriteResult> {
  const project = await administeredProject(
    principals,
    caller,
    projectId,
    ['ClientApplication', 'create'],
    ['ProjectMembership', 'create'],
  )
  const fields = new Fields(body)
  const client = defined({
    name: fields.requiredText('name', 'Client name is required'),
    description: fields.text('description'),
    redirectUris: fields.texts('redirectUris'),
    redirectUri: fields.text('redirectUri'),
    identityProvider: fields.object('identityProvider'),
    accessTokenLifetime: fields.lifetime('accessTokenLifetime'),
    refreshTokenLifetime: fields.lifetime('refreshTokenLifetime'),
  })
  const accessPolicy = fields.reference('accessPolicy')
  fields.ignore('resourceType')
  fields.check()
  if ('identityProvider' in client) requireProviderRight(caller, 'ClientApplication')
  const actor = servicePrincipal(SYSTEM_PROJECT, caller)
  return await changeAudited(repository, caller, {
    make: async (inside) => {
      await requireOwnPolicies(inside, project, accessPolicy)
      return await createClient(inside, actor, project, { client, accessPolicy })
    },
    record: ({ type, id }) => ({ project, interaction: 'create', target: `${type}/${id}` }),
  })
}

/** Errors: 403, 404, 400 with one issue per field. */
export async function addBot(
  { repository, principals }: Services,
  caller: Principal,
  projectId: string,
  body: Record<string, unknown>,
): Promise<WriteResult> {
  const project = await administeredProject(
    principals,
    caller,
    projectId,
    ['Bot', 'create'],
    ['ProjectMembership', 'create'],
  )
  const fields = new Fields(body)
  const bot = defined({
    name: fields.requiredText('name', 'Bot name is required'),
    description: fields.text('description'),
    runtimeVersion: fields.text('runtimeVersion'),
    timeout: fields.whole('timeout'),
    cronString: fields.text('cronString'),
  })
  const accessPolicy = fields.reference('accessPolicy')
  fields.ignore('resourceType')
  fields.check()
  checkBot({ ...bot, resourceType: 'Bot' })
  const actor = servicePrincipal(SYSTEM_PROJECT, caller)
  return await changeAudited(repository, caller, {
    make: async (inside) => {
      await requireOwnPolicies(inside, project, accessPolicy)
      return await createBot(inside, actor, project, { bot, accessPolicy })
    },
    record: ({ type, id }) => ({ project, interaction: 'create', target: `${type}/${id}` }),
  })
}

/** Errors: 403, 404. */
export async function botStats(
  { principals, redis, queues }: Services,
  caller: Principal,
  projectId: string,
) {
  await administeredProject(principals, caller, projectId, ['Bot', 'read'])
  const [bots, lanes, published] = await Promise.all([
    readBotStats(redis, projectId),
    readLanes({ redis, queues }, projectId),
    queues.workerMetrics(),
  ])
  const held = projectMetricValues(published, 'bot_runs_held', projectId)
  return {
    project: { reference: `Project/${projectId}` },
    slotsUsed: sumMetricValues(projectMetricValues(published, 'bot_slots_used', projectId)),
    held: Object.fromEntries(
      [...Map.groupBy(held, ({ labels }) => labels.reason)].map(([reason, values]) => [
        reason,
        sumMetricValues(values),
      ]),
    ),
    lanes,
    bots,
  }
}

interface Value {
  readonly labels: { readonly project?: string; readonly reason?: string }
  readonly value: number
}

interface Published {
  readonly name: string
  readonly values: readonly Value[]
}

/** Returns the last published metrics of all workers. */
function projectMetricValues(
  published: readonly string[],
  wanted: string,
  projectId: string,
): Value[] {
  const metrics = published.flatMap((text) => JSON.parse(text) as Published[])
  const values = metrics.flatMap(({ name, values }) => (name === wanted ? values : []))
  return values.filter(({ labels }) => labels.project === projectId)
}

function sumMetricValues(values: readonly Value[]): number {
  return values.reduce((total, { value }) => total + value, 0)
}
