/** Copies a Project with all its content and new ids; references and Binary URLs are updated. */
import { randomUUID } from 'node:crypto'
import { may } from '../../access/policy.ts'
import { type Principal, servicePrincipal, systemPrincipal } from '../../access/principal.ts'
import { SYSTEM_PROJECT, system } from '../../access/project-context.ts'
import { badRequest, forbidden } from '../../core/errors.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import { mapStrings } from '../../fhir/json.ts'
import { parseReference, type Resource } from '../../fhir/resource.ts'
import { acceptRequest } from '../../jobs/async-requests.ts'
import { expungeProject, type ScanPosition, scanProject } from '../../jobs/upkeep/maintenance.ts'
import { newSecret } from '../../projects/provision.ts'
import {
  openContent,
  readBinaryContent,
  storeContent,
  undoable,
} from '../../request/binary/content.ts'
import { readPreferences } from '../../request/negotiate.ts'
import { readKnownInputs } from '../../request/parameters.ts'
import { absoluteUrl, textReply, versionHeaders } from '../../request/reply.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import type { Services } from '../../request/services.ts'
import { searchFor } from '../../store/lookups.ts'
import { parseVersion, present } from '../../store/rows/rows.ts'
import type { Version, WriteResult } from '../../store/rows/version.ts'

interface Selection {
  readonly name: string
  readonly types: ReadonlySet<string> | undefined
  readonly included: ReadonlySet<string> | undefined
  readonly excluded: ReadonlySet<string>
}

/** History of the old Project. */
const LEFT_OUT = new Set(['Login', 'UserSecurityRequest', 'AuditEvent', 'AsyncJob'])
/** Registry rows that belong to a Project. */
const REGISTRY = ['User', 'ProjectMembership']
const PAGE = 200

type Ids = ReadonlyMap<string, string>

/** A failure rolls back the whole copy. */
async function cloneProject(
  services: Services,
  caller: Principal,
  source: Resource,
  selection: Selection,
): Promise<WriteResult> {
  const { id: sourceId = '' } = source
  const newId = randomUUID()
  const ids = new Map([[`Project/${sourceId}`, newId]])
  for await (const versions of pagesOf(services, sourceId)) {
    for (const { type, id } of versions) {
      if (isSelected(selection, type, id)) ids.set(`${type}/${id}`, randomUUID())
    }
  }
  const actor = servicePrincipal(SYSTEM_PROJECT, caller)
  const { services: inside, undo } = undoable(services)
  try {
    const project = await services.repository.create(
      actor,
      withNewIds(projectCopy(source, selection.name), ids, newId),
      { keepId: true },
    )
    for await (const versions of pagesOf(services, sourceId)) {
      const chosen = versions.filter(({ type, id }) => ids.has(`${type}/${id}`))
      await Promise.all(
        chosen.map((version) => copy(inside, actor, { version, ids, projectId: newId })),
      )
    }
    return project
  } catch (error) {
    await undo()
    while (await services.repository.withStore((store) => expungeProject(store, caller, newId)));
    throw error
  }
}

function isSelected({ types, included, excluded }: Selection, type: string, id: string): boolean {
  if (LEFT_OUT.has(type) || excluded.has(id)) return false
  return (types?.has(type) ?? true) && (included?.has(id) ?? true)
}

/** Members first, then content. */
async function* pagesOf(
  { repository }: Services,
  projectId: string,
): AsyncGenerator<readonly Version[]> {
  const own = systemPrincipal({ ...SYSTEM_PROJECT, id: projectId }, 'project')
  for (const type of REGISTRY) {
    let cursor: string | undefined
    do {
      const page = await repository.search(own, { ...searchFor(type, [], PAGE, []), cursor })
      yield page.versions
      cursor = page.next
    } while (cursor !== undefined)
  }
  let after: ScanPosition | undefined
  do {
    const page = await repository.withStore((store) =>
      scanProject(store, system, projectId, { after, count: PAGE }),
    )
    yield page.versions
    after = page.next
  } while (after !== undefined)
}

interface Copied {
  readonly version: Version
  readonly ids: Ids
  readonly projectId: string
}

async function copy(
  services: Services,
  actor: Principal,
  { version, ids, projectId }: Copied,
): Promise<void> {
  const { type } = version
  const mapped = withNewIds(parseVersion(version), ids, projectId)
  const resource =
    type === 'Binary'
      ? await withOwnContent(services, version, mapped, projectId)
      : withOwnCredentials(mapped)
  await services.repository.create(actor, resource, { keepId: true })
}

/** Streams the content; content stored in the row is already copied. */
async function withOwnContent(
  services: Services,
  version: Version,
  binary: Resource,
  projectId: string,
): Promise<Resource> {
  const content = readBinaryContent(version)
  if ('bytes' in content.place) return binary
  const stream = await openContent(services, content)
  return { ...binary, url: await storeContent(services, projectId, stream, content) }
}

/** Clients get new secrets, and users must set a password. */
function withOwnCredentials(resource: Resource): Resource {
  if (resource.resourceType === 'ClientApplication') {
    const { retiringSecret: _, ...rest } = resource
    return { ...rest, resourceType: 'ClientApplication', secret: newSecret() }
  }
  if (resource.resourceType !== 'User') return resource
  const { passwordHash: _, mfaSecret: __, mfaEnrolled: ___, provenEmail: ____, ...rest } = resource
  return { ...rest, resourceType: 'User' }
}

function projectCopy(source: Resource, name: string): Resource {
  const { superAdmin: _, secret: __, systemSecret: ___, meta: ____, ...rest } = source
  return { ...rest, resourceType: 'Project', name }
}

function withNewIds(resource: Resource, ids: Ids, projectId: string): Resource {
  const { resourceType, id, meta } = resource
  const mapped = mapStrings(resource, (text, name) =>
    ['reference', 'url', 'path'].includes(name) ? (newReference(text, ids) ?? text) : text,
  )
  const { versionId: _, lastUpdated: __, author: ___, compartment: ____, ...kept } = meta ?? {}
  const accounts = mapped.meta?.accounts
  return {
    ...mapped,
    id: ids.get(`${resourceType}/${id}`) ?? projectId,
    meta: { ...kept, ...(accounts ? { accounts } : {}), project: projectId },
  }
}

/** Drops the version: old versions do not exist in the copy. */
function newReference(text: string, ids: Ids): string | undefined {
  const parsed = parseReference(text)
  const id = parsed && ids.get(`${parsed.type}/${parsed.id}`)
  return parsed && id && `${parsed.type}/${id}`
}

/** With `Prefer: respond-async` a worker runs it. Errors: 400, 403, 404. */
export const clone: Operation = {
  name: 'clone',
  on: [{ type: 'Project', level: 'instance' }],
  methods: ['POST'],
  inputs: {
    name: 'text: Of the copy',
    resourceTypes: 'text*: Only these types',
    includeIds: 'text*: Only these resources',
    excludeIds: 'text*: Without these resources',
  },
  text: {
    summary: 'Copy a project',
    description: 'Includes its resources, under new ids.',
    answer: 'Project',
    status: 201,
  },
  area: 'administration',
  async run(call) {
    const { services, principal, request, id = '' } = call
    if (!principal.isSuperAdmin || !may(principal, 'Project', 'create')) throw forbidden()
    const source = parseVersion(await services.repository.read(principal, 'Project', id))
    const selection = readSelection(call, String(source.name ?? ''))
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

/** Errors: 400 also for unknown names: without its ids the copy would include everything. */
function readSelection(call: OperationCall, sourceName: string): Selection {
  const inputs = readKnownInputs(call)
  const name = inputs.text('name') ?? `${sourceName} (copy)`
  if (name.trim() === '') throw badRequest('name is required', 'name')
  const types = inputs.texts('resourceTypes')
  const unknown = types.find((type) => !isResourceType(type))
  if (unknown !== undefined) throw badRequest(`Unknown resource type ${unknown}`, 'resourceTypes')
  const included = inputs.texts('includeIds')
  return {
    name,
    types: types.length === 0 ? undefined : new Set(types),
    included: included.length === 0 ? undefined : new Set(included),
    excluded: new Set(inputs.texts('excludeIds')),
  }
}
