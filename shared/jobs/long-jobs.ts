/** Long work that a worker does: 202 with an AsyncJob, whose status the caller looks at. */

import { randomUUID } from 'node:crypto'
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { SYSTEM_PROJECT } from '../access/project-context.ts'
import { scopeExtension } from '../access/scopes.ts'
import { accepted, allOk, badRequest, forbidden } from '../errors.ts'
import { COMPARTMENTS } from '../fhir/definitions.ts'
import { readInputs } from '../request/parameters.ts'
import { absoluteUrl, outcomeReply } from '../request/reply.ts'
import type { FhirReply, FhirRequest, Operation, OperationCall } from '../request/request.ts'
import type { Services } from '../services.ts'
import { addUpkeepJob, type UpkeepKind } from '../store/rows/upkeep-jobs.ts'
import { platformMeta } from '../store/rows/version.ts'
import { createMaintenance } from './upkeep/maintenance.ts'

/** `projectId` is the Project that is worked on; `filter` narrows a reindex. Errors: 403 for who has no membership. */
export async function startUpkeep(
  { services, principal, request, type, id }: OperationCall,
  kind: UpkeepKind,
  projectId: string,
  filter?: string,
): Promise<FhirReply> {
  const { database } = services
  const { project, profile, membershipId, scope, patient } = principal
  if (membershipId === undefined) throw forbidden()
  const jobId = randomUUID()
  await createJob(services, principal, { request, id: jobId, state: { status: 'accepted' } })
  const asked = { homeId: project.id, requester: profile, membershipId, scope, patient }
  const input = { ...asked, projectId, type, id, filter }
  await addUpkeepJob(database, jobId, { project: project.number, kind, input })
  return jobReply(services, jobId)
}

/** For work that turns out to be done already: an AsyncJob that is complete. */
export async function completedJob({
  services,
  principal,
  request,
}: Pick<OperationCall, 'services' | 'principal' | 'request'>): Promise<FhirReply> {
  const jobId = randomUUID()
  await createJob(services, principal, {
    request,
    id: jobId,
    state: {
      status: 'completed',
      transactionTime: new Date().toISOString(),
      output: { resourceType: 'Parameters', parameter: [{ name: 'outcome', resource: allOk }] },
    },
  })
  return jobReply(services, jobId)
}

interface NewJob {
  readonly request: FhirRequest
  readonly id: string
  readonly state: Readonly<Record<string, unknown>>
}

async function createJob(
  services: Services,
  caller: Principal,
  { request: { path }, id, state }: NewJob,
): Promise<void> {
  const resource = {
    resourceType: 'AsyncJob',
    id,
    request: absoluteUrl(services, path),
    requestTime: new Date().toISOString(),
    ...scopeExtension(caller),
    ...state,
  }
  const author = { ...systemPrincipal(caller.project), profile: caller.profile }
  await services.repository.create(author, resource, { keepId: true })
}

function jobReply(services: Services, jobId: string): FhirReply {
  const url = absoluteUrl(services, `job/${jobId}/status`)
  return outcomeReply(202, accepted(url), { 'Content-Location': url, 'Retry-After': '1' })
}

const KEPT_MS = 7 * 24 * 3_600_000

/** Removes jobs and their results after 7 days; returns how many. */
export async function removeOldJobs({ repository }: Services): Promise<number> {
  const before = new Date(Date.now() - KEPT_MS)
  return await repository
    .feature(createMaintenance)
    .purge(systemPrincipal(SYSTEM_PROJECT), 'AsyncJob', before)
}

/** One resource at once, by an admin; a type or all of them by a worker, for a super admin. */
export const reindex: Operation = {
  name: 'reindex',
  on: [{ level: 'system' }, { level: 'type' }, { level: 'instance' }],
  methods: ['POST'],
  area: 'administration',
  async run(call) {
    const { services, principal, type = '', id } = call
    if (id === undefined) {
      if (!principal.isSuperAdmin) throw forbidden()
      return startUpkeep(call, 'reindex', principal.project.id)
    }
    await services.repository.feature(createMaintenance).reindex(principal, type, id)
    return outcomeReply(200, allOk)
  },
}

export const expunge: Operation = {
  name: 'expunge',
  on: [{ level: 'instance' }],
  methods: ['POST'],
  area: 'administration',
  async run(call) {
    const { services, principal, type = '', id = '' } = call
    const { repository } = services
    const everything = readInputs(call, [{ name: 'everything', kind: 'flag' }]).flag('everything')
    if (type !== 'Project' && !everything) {
      await repository.feature(createMaintenance).expunge(principal, type, id)
      return outcomeReply(200, allOk)
    }
    if (!principal.isProjectAdmin) throw forbidden()
    if (type === 'Project') {
      if (!principal.isSuperAdmin) throw forbidden()
      await repository.read(principal, type, id)
      if (id === principal.project.id) throw badRequest('This Project cannot be expunged')
      return startUpkeep(call, 'expunge', id)
    }
    if (!COMPARTMENTS.some((name) => name === type)) {
      throw badRequest(`${type} has no compartment; only ${COMPARTMENTS.join(', ')} have`)
    }
    const { project } = platformMeta(await repository.read(principal, type, id))
    return startUpkeep(call, 'expunge', project ?? principal.project.id)
  },
}
