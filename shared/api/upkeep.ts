/** Long work that a worker does: 202 with an AsyncJob, whose status the caller looks at. */
import { randomUUID } from 'node:crypto'
import { systemPrincipal } from '../access/principal.ts'
import { forbidden } from '../errors.ts'
import { accepted } from '../fhir/outcome.ts'
import { addUpkeepJob, type UpkeepKind } from '../store/upkeep-jobs.ts'
import type { FhirReply } from './handle.ts'
import { absoluteUrl } from './interaction.ts'
import type { OperationCall } from './operation.ts'
import { outcomeReply } from './reply.ts'

/** `projectId` is the Project that is worked on. Errors: 403 for who has no membership. */
export async function startUpkeep(
  { services, principal, request, type, id }: OperationCall,
  kind: UpkeepKind,
  projectId: string,
): Promise<FhirReply> {
  const { repository, database } = services
  const { project, profile, membershipId } = principal
  if (membershipId === undefined) throw forbidden()
  const jobId = randomUUID()
  const author = { ...systemPrincipal(project), profile }
  const resource = {
    resourceType: 'AsyncJob',
    id: jobId,
    status: 'accepted',
    request: absoluteUrl(services, request.path),
    requestTime: new Date().toISOString(),
  }
  await repository.create(author, resource, { keepId: true })
  const input = { homeId: project.id, requester: profile, membershipId, projectId, type, id }
  await addUpkeepJob(database, jobId, project.number, kind, input)
  const url = absoluteUrl(services, `job/${jobId}/status`)
  return outcomeReply(202, accepted(url), { 'Content-Location': url, 'Retry-After': '1' })
}
