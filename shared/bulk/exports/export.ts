/**
 * Kick-off of a bulk export: https://hl7.org/fhir/uv/bulkdata/STU2/export.html
 * All refusals happen here; then a row is written and a worker is woken.
 */
import { randomUUID } from 'node:crypto'
import type { Principal } from '../../access/principal.ts'
import { rightsDigest } from '../../access/rights-digest.ts'
import { accepted, forbidden, HttpError, tooManyRequests } from '../../errors.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import { readPreferences, readQuery } from '../../request/negotiate.ts'
import { absoluteUrl, outcomeReply } from '../../request/reply.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { withCodes } from '../../rest/search/codes.ts'
import { parsed } from '../../rest/search/criteria.ts'
import type { Services } from '../../services.ts'
import { normalId } from '../../store/rows/context.ts'
import type { Version } from '../../store/rows/version.ts'
import type { ImportJob, ImportPart } from '../imports/imports.ts'
import { endImport, findImport, importManifest } from '../imports/status.ts'
import { beginExport, type ListedFile } from './announce.ts'
import { manifestOf, statusUrl } from './file.ts'
import { type ExportParameters, type Fault, fault, readParameters, settle } from './parameters.ts'
import { createExports } from './rows/exports.ts'
import type { ExportJob, ExportLevel, TypeFilter } from './rows/jobs.ts'
import { fits, isExportable, mayExport, typesOf } from './rows/scope.ts'
import { cancelJob, findExport } from './status.ts'

/** Exports of one Project: a longer queue helps nobody. */
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
  acts: true,
  ownFormat: true,
  async run(call) {
    const { services, principal, request, type, id } = call
    const { membershipId, scope, patient, profile, clientId, project } = principal
    if (membershipId === undefined) throw forbidden('an export belongs to a member')
    const preferences = preferencesOf(call)
    const level = levelOf(type, id)
    const { parameters, typeFilters, faults } = readParameters(request, level)
    const refused = refusedTypes(principal, level, parameters)
    if (type !== undefined && id !== undefined) await services.repository.read(principal, type, id)
    const filtered = await readTypeFilters(call, typeFilters, level, parameters.types)
    const unknown = await unknownPatients(call, level, parameters.patients)
    const all = [...faults, ...refused, ...filtered.faults, ...unknown]
    const issues = settle(all, preferences.isLenient)
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
      // A page that was given never changes, and addresses of objects do.
      presigned: services.storage.sign !== undefined && !parameters.partialManifests,
    }
    const job = { id: jobId, project: project.number, input, issues }
    if (!(await beginExport(services, principal, job, MOST_WAITING))) {
      throw tooManyRequests(RETRY_SECONDS)
    }
    await services.queues.wake('export', 1)
    const url = statusUrl(services, jobId)
    return outcomeReply(202, accepted(url), {
      'Content-Location': url,
      'Cache-Control': 'no-store',
      'Preference-Applied': preferences.applied,
    })
  },
}

function preferencesOf({ request }: OperationCall) {
  // `Accept` is about the files, too, and they are no JSON.
  const { headers, query } = request
  const asked = new URLSearchParams(query)
  asked.delete('_format')
  const { handling, applied } = readPreferences({
    ...request,
    query: asked,
    headers: { ...headers, accept: undefined },
  })
  const separateStatus = /(^|[,;])\s*separate-export-status\s*([,;]|$)/i.test(headers.prefer ?? '')
  const all = [applied, 'respond-async', separateStatus ? 'separate-export-status' : '']
  return {
    isLenient: handling === 'lenient',
    separateStatus,
    applied: all.filter((item) => item !== '').join(', '),
  }
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
  const found = typesOf(principal, { level, types, provenance, organizedBy })
  if (types === undefined && found.length === 0) throw forbidden('no right to read any type')
  if (types !== undefined && found.length === 0 && faults.length === 0) {
    const text = 'None of the types is in the compartment of a patient'
    return [fault('invalid', text, '_type')]
  }
  return faults
}

/** One answer for a patient that is not there, is not visible, or is no member of the Group. */
async function unknownPatients(
  { services, principal, id }: OperationCall,
  level: ExportLevel,
  patients: readonly string[] | undefined,
): Promise<readonly Fault[]> {
  if (patients === undefined || (level !== 'patient' && level !== 'group')) return []
  const known = await services.repository.feature(createExports).patientsIn(principal, patients, id)
  return patients.flatMap((patient) => {
    if (known.has(normalId(patient))) return []
    return [fault('invalid', `There is no Patient/${patient} to be exported`, 'patient', true)]
  })
}

interface ReadFilters {
  readonly filters: readonly TypeFilter[]
  readonly faults: readonly Fault[]
}

// Each is a search of one type: https://hl7.org/fhir/uv/bulkdata/STU2/export.html#_typefilter-query-parameter
const NAME = '_typeFilter'
/** These parameters shape the answer of a search, not its matches. */
const RESULT =
  /^_(sort|count|include|revinclude|summary|total|elements|contained|containedType|offset|cursor|score|explain|fields|format|pretty|deleted)(:|$)/

/** Errors: 403 for a type, or a parameter of it, that the member may not search by. */
async function readTypeFilters(
  asking: { readonly services: Services; readonly principal: Principal },
  texts: readonly string[],
  level: ExportLevel,
  types: readonly string[] | undefined,
): Promise<ReadFilters> {
  const filters: TypeFilter[] = []
  const faults: Fault[] = []
  for (const text of texts) {
    const found = await readFilter(asking, text, level, types)
    if ('isFatal' in found) faults.push(found)
    else filters.push(found)
  }
  return { filters, faults }
}

async function readFilter(
  asking: { readonly services: Services; readonly principal: Principal },
  text: string,
  level: ExportLevel,
  types: readonly string[] | undefined,
): Promise<TypeFilter | Fault> {
  const { services, principal } = asking
  const at = text.indexOf('?')
  const type = at === -1 ? text : text.slice(0, at)
  const said = type.slice(0, 64)
  if (at < 1) return fault('invalid', `A filter is Type?query, not ${text.slice(0, 64)}`, NAME)
  if (!isResourceType(type)) return fault('invalid', `Unknown type ${said}`, NAME)
  if (!isExportable(principal, type)) return fault('not-supported', `${type} is not exported`, NAME)
  if (types !== undefined && !types.includes(type)) {
    return fault('invalid', `${type} is filtered but is not in _type`, NAME)
  }
  if (!fits(level, type)) {
    return fault('invalid', `${type} is filtered but is not in the compartment of a patient`, NAME)
  }
  try {
    const query = readQuery(text.slice(at + 1))
    const result = [...query.keys()].find((name) => RESULT.test(name))
    if (result !== undefined) {
      return fault('not-supported', `${result.slice(0, 64)} is no filter`, NAME)
    }
    const request = await withCodes(asking, parsed(asking, type, query, 'strict'))
    const filter = { type, conditions: request.conditions }
    await services.repository.feature(createExports).check(principal, filter)
    return filter
  } catch (error) {
    if (!(error instanceof HttpError) || error.status !== 400) throw error
    return fault('invalid', `${type}: ${error.message}`, NAME)
  }
}

// Exports and imports in the form of an AsyncJob, which the SDK reads and cancels.

/** It is not stored: one version, as it is now. Errors: 404. */
export async function readBulkJob(
  services: Services,
  principal: Principal,
  id: string,
): Promise<Version> {
  const found = await findImport(services, principal, id)
  if (found !== undefined) return importAsJob(services, found.job, found.parts)
  return exportAsJob(services, await findExport(services, principal, id))
}

/** Errors: 404. */
export async function cancelBulkJob(
  services: Services,
  principal: Principal,
  id: string,
): Promise<void> {
  const found = await findImport(services, principal, id)
  if (found !== undefined) return endImport(services, principal, found.job)
  return cancelJob(services, principal, await findExport(services, principal, id))
}

async function exportAsJob(services: Services, job: ExportJob): Promise<Version> {
  const { id, state, input, requested, at, finished } = job
  const files = state === 'completed' ? await manifestOf(services, job) : undefined
  return versionOf(id, finished ?? at ?? requested, {
    status: state,
    requestTime: requested.toISOString(),
    request: input.request,
    ...(at === null ? {} : { transactionTime: at.toISOString() }),
    ...(files === undefined ? {} : { output: exportOutput(files) }),
  })
}

function exportOutput({ output, deleted = [], error }: Awaited<ReturnType<typeof manifestOf>>) {
  const parameter = [
    ...named('output', output),
    ...named('deleted', deleted),
    ...named('error', error),
  ]
  return { resourceType: 'Parameters', parameter }
}

function importAsJob(services: Services, job: ImportJob, parts: readonly ImportPart[]): Version {
  const { id, state, request, added, ended } = job
  return versionOf(id, ended ?? added, {
    status: state === 'failed' ? 'error' : state,
    requestTime: added.toISOString(),
    request,
    ...(ended === null ? {} : { transactionTime: ended.toISOString() }),
    ...(state === 'completed' ? { output: importOutput(services, job, parts) } : {}),
  })
}

const COUNTS = ['count', 'created', 'updated', 'unchanged', 'skipped'] as const

function importOutput(services: Services, job: ImportJob, parts: readonly ImportPart[]) {
  const { output, error } = importManifest(services, job, parts)
  const inputs = output.map((input) => ({
    name: 'output',
    part: [
      ...(input.type === undefined ? [] : [{ name: 'type', valueCode: input.type }]),
      { name: 'inputUrl', valueUri: input.inputUrl },
      ...COUNTS.map((name) => ({ name, valueInteger: input[name] })),
    ],
  }))
  return { resourceType: 'Parameters', parameter: [...inputs, ...named('error', error)] }
}

function named(name: string, files: readonly Pick<ListedFile, 'type' | 'url'>[]) {
  return files.map(({ type, url }) => ({
    name,
    part: [
      { name: 'type', valueCode: type },
      { name: 'url', valueUri: url },
    ],
  }))
}

function versionOf(id: string, lastUpdated: Date, members: object): Version {
  const content = JSON.stringify({
    resourceType: 'AsyncJob',
    id,
    meta: { versionId: '1', lastUpdated: lastUpdated.toISOString() },
    ...members,
  })
  return {
    type: 'AsyncJob',
    id,
    ver: 1,
    lastUpdated,
    content,
    metaAt: 0,
    metaExtension: '',
  }
}
