/**
 * Kick-off of a bulk export: https://hl7.org/fhir/uv/bulkdata/STU2/export.html
 * All that can be refused is refused here; then a row is written and a worker told.
 */
import { randomUUID } from 'node:crypto'
import type { Principal } from '../../access/principal.ts'
import { forbidden, tooManyRequests } from '../../errors.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import { accepted } from '../../fhir/outcome.ts'
import { addExport, type ExportLevel } from '../../store/exports/jobs.ts'
import { isExportable, mayExport, typesOf } from '../../store/exports/scope.ts'
import { fault, readParameters, settle } from '../exports/parameters.ts'
import { absoluteUrl } from '../interaction.ts'
import { readPreferences } from '../negotiate.ts'
import type { Operation, OperationCall } from '../operation.ts'
import { outcomeReply } from '../reply.ts'

/** Of one Project: a queue that grows beyond helps nobody. */
const MOST_WAITING = 10
const RETRY_SECONDS = 60

export const exportData: Operation = {
  name: 'export',
  standard: 'bulk',
  on: [
    { level: 'system' },
    { type: 'Patient', level: 'type' },
    { type: 'Patient', level: 'instance' },
    { type: 'Group', level: 'instance' },
  ],
  methods: ['GET', 'POST'],
  ownFormat: true,
  async run(call) {
    const { services, principal, request, type, id } = call
    const { membershipId, scope, patient, profile, clientId, project } = principal
    if (membershipId === undefined) throw forbidden('an export belongs to a member')
    const { isLenient, applied } = preferencesOf(call)
    const { parameters, dropped } = readParameters(request, isLenient)
    const level = levelOf(type, id)
    const refused = refusedTypes(principal, level, parameters.types, isLenient)
    if (type !== undefined && id !== undefined) await services.repository.read(principal, type, id)
    const jobId = randomUUID()
    const query = request.query.toString()
    const input = {
      projectId: project.id,
      membershipId,
      scope,
      patient,
      profile,
      clientId,
      request: absoluteUrl(services, query === '' ? request.path : `${request.path}?${query}`),
      level,
      id,
      ...parameters,
      elements: [],
      filters: [],
      patients: undefined,
      provenance: undefined,
      separateStatus: false,
      partialManifests: false,
    }
    const job = { id: jobId, project: project.number, input, issues: [...dropped, ...refused] }
    if (!(await addExport(services.database, job, MOST_WAITING))) {
      throw tooManyRequests(RETRY_SECONDS)
    }
    await services.queues.wakeExports(1)
    const url = absoluteUrl(services, `bulkdata/export/${jobId}`)
    return outcomeReply(202, accepted(url), {
      'Content-Location': url,
      'Cache-Control': 'no-store',
      'Preference-Applied': applied,
    })
  },
}

function preferencesOf({ request }: OperationCall) {
  // What the client accepts is said of the files, too, and they are no JSON.
  const { headers, query } = request
  const asked = new URLSearchParams(query)
  asked.delete('_format')
  const { handling, applied } = readPreferences({
    ...request,
    query: asked,
    headers: { ...headers, accept: undefined },
  })
  const all = [applied, 'respond-async'].filter((item) => item !== '')
  return { isLenient: handling === 'lenient', applied: all.join(', ') }
}

function levelOf(type: string | undefined, id: string | undefined): ExportLevel {
  if (type === undefined) return 'system'
  if (type === 'Group') return 'group'
  return id === undefined ? 'patient' : 'instance'
}

/** Errors: 403 for a type that the member may not read, or when there is none that it may. */
function refusedTypes(
  principal: Principal,
  level: ExportLevel,
  types: readonly string[] | undefined,
  isLenient: boolean,
) {
  const faults = (types ?? []).flatMap((type) => {
    const name = type.slice(0, 64)
    if (!isResourceType(type)) return [fault('invalid', `Unknown type ${name}`, '_type')]
    const asAdmin = { ...principal, isProjectAdmin: true }
    if (!isExportable(asAdmin, type)) {
      return [fault('not-supported', `${name} is never exported`, '_type')]
    }
    if (!isExportable(principal, type) || !mayExport(principal, type)) {
      throw forbidden(`no right to export ${type}`)
    }
    return []
  })
  const found = typesOf(principal, { level, types })
  if (types === undefined && found.length === 0) throw forbidden('no right to read any type')
  if (types !== undefined && found.length === 0 && faults.length === 0) {
    faults.push(fault('invalid', 'None of the types is in the compartment of a patient', '_type'))
  }
  return settle(faults, isLenient)
}
