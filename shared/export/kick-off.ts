/** Kick-off of a bulk export: https://hl7.org/fhir/uv/bulkdata/STU2/export.html */
import { randomUUID } from 'node:crypto'
import { rightsDigest } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { accepted, forbidden, tooManyRequests } from '../core/errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import { wakeWorkers } from '../redis/wakes.ts'
import { readPrefer, readPreferences } from '../request/negotiate.ts'
import { absoluteUrl, fhirBases, outcomeReply } from '../request/reply.ts'
import type { Operation, OperationCall } from '../request/request.ts'
import { normalId } from '../store/rows/context.ts'
import { beginExport, statusUrl } from './announce.ts'
import {
  type ExportParameters,
  type Fault,
  fault,
  readParameters,
  readTypeFilters,
  resolveFaults,
} from './parameters.ts'
import type { ExportLevel } from './rows/jobs.ts'
import { patientsIn } from './rows/members.ts'
import { exportedTypes, isExportable, mayExport } from './rows/scope.ts'

/** Waiting exports per Project. */
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
  text: {
    summary: 'Export in bulk',
    description: 'Returns 202; `Content-Location` gives the address of the manifest.',
    query: {
      _type: 'text: A comma list of types',
      _since: 'text: Only changes and deletions since this time',
      _until: 'text: Only changes before this time',
      _elements: 'text: Only these elements',
      _typeFilter: 'text: Type?query',
      _outputFormat: 'text: application/fhir+ndjson',
      includeAssociatedData: 'text: LatestProvenanceResources, for example',
      organizeOutputBy: 'text: Patient',
    },
    status: 202,
  },
  acts: true,
  ownFormat: true,
  async run(call) {
    const { services, principal, request, type, id } = call
    const { membershipId, scope, patient, profile, clientId, project } = principal
    if (membershipId === undefined) throw forbidden('an export belongs to a member')
    const preferences = exportPreferences(call)
    const level = exportLevel(type, id)
    const bases = fhirBases(services, project.id)
    const { parameters, typeFilters, faults } = readParameters(request, level, bases)
    const refused = refusedTypes(principal, level, parameters)
    if (type !== undefined && id !== undefined) await services.repository.read(principal, type, id)
    const filtered = await readTypeFilters(call, typeFilters, level, parameters.types)
    const unknown = await unknownPatients(call, level, parameters.patients)
    const all = [...faults, ...refused, ...filtered.faults, ...unknown]
    const issues = resolveFaults(all, preferences.isLenient)
    const jobId = randomUUID()
    const query = request.queryText ?? request.query.toString()
    const input = {
      projectId: project.id,
      membershipId,
      scope,
      patient,
      profile,
      clientId,
      rights: rightsDigest(principal),
      request: absoluteUrl(services, query === '' ? request.path : `${request.path}?${query}`),
      level,
      id,
      ...parameters,
      filters: filtered.filters,
      separateStatus: preferences.separateStatus,
      // A published page never changes, but presigned URLs do.
      presigned: services.storage.sign !== undefined && !parameters.partialManifests,
    }
    const job = { id: jobId, project: project.number, input, issues }
    if (!(await beginExport(services, principal, job, MOST_WAITING))) {
      throw tooManyRequests(RETRY_SECONDS)
    }
    await wakeWorkers(services.bus, 'export')
    const url = statusUrl(services, jobId)
    return outcomeReply(202, accepted(url), {
      'Content-Location': url,
      'Cache-Control': 'no-store',
      'Preference-Applied': preferences.applied,
    })
  },
}

function exportPreferences({ request }: OperationCall) {
  // `Accept` also concerns the files, which are not JSON.
  const { headers, query } = request
  const asked = new URLSearchParams(query)
  asked.delete('_format')
  const { handling, applied } = readPreferences({
    ...request,
    query: asked,
    headers: { ...headers, accept: undefined },
  })
  const separateStatus = readPrefer(headers.prefer).separateExportStatus
  const all = [applied, 'respond-async', separateStatus ? 'separate-export-status' : '']
  return {
    isLenient: handling === 'lenient',
    separateStatus,
    applied: all.filter((item) => item !== '').join(', '),
  }
}

function exportLevel(type: string | undefined, id: string | undefined): ExportLevel {
  if (type === undefined) return 'system'
  if (type === 'Group') return 'group'
  return id === undefined ? 'patient' : 'instance'
}

/** Errors: 403 for a type the member may not read, or when there is none. */
function refusedTypes(
  principal: Principal,
  level: ExportLevel,
  {
    types,
    provenance,
    organizedBy,
  }: Pick<ExportParameters, 'types' | 'provenance' | 'organizedBy'>,
): readonly Fault[] {
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
  if (organizedBy !== undefined && !mayExport(principal, organizedBy)) {
    throw forbidden(`no right to export ${organizedBy}, by which the output is organized`)
  }
  const found = exportedTypes(principal, { level, types, provenance, organizedBy })
  if (types === undefined && found.length === 0) throw forbidden('no right to read any type')
  if (types !== undefined && found.length === 0 && faults.length === 0) {
    const text = 'None of the types is in the compartment of a patient'
    return [fault('invalid', text, '_type')]
  }
  return faults
}

/** Returns the same error for a patient that is missing, invisible, or not in the Group. */
async function unknownPatients(
  { services, principal, id }: OperationCall,
  level: ExportLevel,
  patients: readonly string[] | undefined,
): Promise<readonly Fault[]> {
  if (patients === undefined || (level !== 'patient' && level !== 'group')) return []
  const store = services.repository.withStore((store) => store)
  const known = await patientsIn(store, principal, patients, id)
  return patients.flatMap((patient) => {
    if (known.has(normalId(patient))) return []
    return [fault('invalid', `There is no Patient/${patient} to be exported`, 'patient', true)]
  })
}
