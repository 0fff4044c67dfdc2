/** Projects: made by super admins, read and changed by their administrators. */
import type { Principal } from '../../../shared/access/principal.ts'
import { badRequest, forbidden, type Issue, invalid, issue } from '../../../shared/errors.ts'
import { isObject, type Resource } from '../../../shared/fhir/resource.ts'
import { administeredProject, requireUnlessLimited } from '../../../shared/projects/access.ts'
import { newProject, onBehalfOf } from '../../../shared/projects/provision.ts'
import { givenFields, recordChange } from '../../../shared/request/admin-audit.ts'
import type { Services } from '../../../shared/services.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { WriteResult } from '../../../shared/store/rows/version.ts'
import { requireValid } from '../../../shared/validation/validate.ts'

/** Fields of a Project that its administrators replace as a whole. */
export type ProjectList = 'secret' | 'setting' | 'site'

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
  return await repository.transaction(async (inside) => {
    const written = await inside.create(caller, project)
    const target = `Project/${written.id}`
    await recordChange(inside, caller, caller.project, 'create', target, givenFields(project))
    return written
  })
}

/** Errors: 403, 404. */
export async function readProject(
  { repository, principals }: Services,
  caller: Principal,
  projectId: string,
) {
  await administeredProject(principals, caller, projectId)
  requireUnlessLimited(caller, ['Project', 'read'])
  const version = await repository.read(onBehalfOf(caller), 'Project', projectId)
  const { id, name, secret, site, setting, features } = parseVersion(version)
  return { project: { id, name, secret, site, setting, features } }
}

/** Errors: 403, 404, 400 with one issue an item. */
export async function replaceProjectList(
  { repository, principals }: Services,
  caller: Principal,
  projectId: string,
  list: ProjectList,
  body: unknown,
): Promise<WriteResult> {
  const project = await administeredProject(principals, caller, projectId)
  requireUnlessLimited(caller, ['Project', 'update'])
  const items = checkedItems(list, body)
  const actor = onBehalfOf(caller)
  return await repository.transaction(async (inside) => {
    const written = await inside.patch(actor, 'Project', projectId, (current) => {
      const { [list]: _, ...rest } = current
      // An empty array is no FHIR: without items the element goes.
      const next = (items.length === 0 ? rest : { ...rest, [list]: items }) as Resource
      requireValid(next, { strict: true })
      return next
    })
    await recordChange(inside, caller, project, 'update', `Project/${projectId}`, [list])
    return written
  })
}

function checkedItems(list: ProjectList, body: unknown): readonly unknown[] {
  if (!Array.isArray(body)) throw badRequest(`Content must be an array of ${list} items`)
  const issues = body.flatMap((item, index): Issue[] => {
    const problem = list === 'site' ? siteProblem(item) : settingProblem(item)
    return problem === undefined ? [] : [issue('error', 'invalid', problem, `${list}[${index}]`)]
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
