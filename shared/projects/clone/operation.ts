/** `Project/$clone`: a copy of a Project with new ids. */
import { may } from '../../access/policy.ts'
import { badRequest, forbidden } from '../../errors.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import { isObject } from '../../fhir/resource.ts'
import { acceptRequest } from '../../jobs/async-requests.ts'
import { readJson, readPreferences } from '../../request/negotiate.ts'
import type { Operation } from '../../request/operation.ts'
import { versionHeaders } from '../../request/preconditions.ts'
import { absoluteUrl, textReply } from '../../request/reply.ts'
import { parseVersion, present } from '../../store/rows/rows.ts'
import { cloneProject, type Selection } from './clone.ts'

/** With `Prefer: respond-async` a worker does it. Errors: 400, 403, 404. */
export const clone: Operation = {
  name: 'clone',
  on: [{ type: 'Project', level: 'instance' }],
  methods: ['POST'],
  area: 'administration',
  async run(call) {
    const { services, principal, request, id = '' } = call
    if (!principal.isSuperAdmin || !may(principal, 'Project', 'create')) throw forbidden()
    const source = parseVersion(await services.repository.read(principal, 'Project', id))
    const body = request.body === undefined ? {} : readJson(request)
    const selection = readSelection(body, String(source.name ?? ''))
    const preferences = readPreferences(request)
    if (preferences.respondAsync) {
      return await acceptRequest({ services, principal, request, preferences })
    }
    const made = await cloneProject(services, principal, source, selection)
    return textReply(201, present(made, principal, preferences.extended), {
      ...versionHeaders(made),
      Location: absoluteUrl(services, `Project/${made.id}`),
    })
  },
}

function readSelection(body: unknown, sourceName: string): Selection {
  if (!isObject(body)) throw badRequest('Content must be a JSON object')
  const { name = `${sourceName} (copy)` } = body
  if (typeof name !== 'string' || name.trim() === '') throw badRequest('name is required', 'name')
  const types = textsOf(body, 'resourceTypes')
  const odd = types?.find((type) => !isResourceType(type))
  if (odd !== undefined) throw badRequest(`Unknown resource type ${odd}`, 'resourceTypes')
  const included = textsOf(body, 'includeIds')
  return {
    name,
    types: types && new Set(types),
    included: included && new Set(included),
    excluded: new Set(textsOf(body, 'excludeIds')),
  }
}

/** An empty list is as good as none. */
function textsOf(body: Record<string, unknown>, name: string): readonly string[] | undefined {
  const value = body[name]
  if (value === undefined || value === null) return undefined
  if (!Array.isArray(value) || !value.every((item) => typeof item === 'string')) {
    throw badRequest(`${name} must be an array of strings`, name)
  }
  return value.length === 0 ? undefined : value
}
