/** Long work that a worker does: 202 with an AsyncJob, whose status the caller looks at. */
import { randomUUID } from 'node:crypto'
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { forbidden } from '../errors.ts'
import { accepted, allOk } from '../fhir/outcome.ts'
import type { Services } from '../services.ts'
import { addUpkeepJob, type UpkeepKind } from '../store/upkeep-jobs.ts'
import type { FhirReply, FhirRequest } from './handle.ts'
import { absoluteUrl } from './interaction.ts'
import type { OperationCall } from './operation.ts'
import { outcomeReply } from './reply.ts'

/** `projectId` is the Project that is worked on; `filter` narrows a reindex. Errors: 403 for who has no membership. */
export async function startUpkeep(
  { services, principal, request, type, id }: OperationCall,
  kind: UpkeepKind,
  projectId: string,
  filter?: string,
): Promise<FhirReply> {
  const { database } = services
  const { project, profile, membershipId } = principal
  if (membershipId === undefined) throw forbidden()
  const jobId = randomUUID()
  await createJob(services, principal, request, jobId, { status: 'accepted' })
  const asked = { homeId: project.id, requester: profile, membershipId }
  const input = { ...asked, projectId, type, id, filter }
  await addUpkeepJob(database, jobId, project.number, kind, input)
  return jobReply(services, jobId)
}

/** For work that turns out to be done already: an AsyncJob that is complete. */
export async function completedJob({
  services,
  principal,
  request,
}: Pick<OperationCall, 'services' | 'principal' | 'request'>): Promise<FhirReply> {
  const jobId = randomUUID()
  await createJob(services, principal, request, jobId, {
    status: 'completed',
    transactionTime: new Date().toISOString(),
    output: { resourceType: 'Parameters', parameter: [{ name: 'outcome', resource: allOk }] },
  })
  return jobReply(services, jobId)
}

async function createJob(
  services: Services,
  { project, profile }: Principal,
  { path }: FhirRequest,
  id: string,
  state: Readonly<Record<string, unknown>>,
): Promise<void> {
  const resource = {
    resourceType: 'AsyncJob',
    id,
    request: absoluteUrl(services, path),
    requestTime: new Date().toISOString(),
    ...state,
  }
  const author = { ...systemPrincipal(project), profile }
  await services.repository.create(author, resource, { keepId: true })
}

function jobReply(services: Services, jobId: string): FhirReply {
  const url = absoluteUrl(services, `job/${jobId}/status`)
  return outcomeReply(202, accepted(url), { 'Content-Location': url, 'Retry-After': '1' })
}
