/** Exports and imports in the form of an AsyncJob, which the SDK reads and cancels. */
import type { Principal } from '../../access/principal.ts'
import type { Services } from '../../services.ts'
import type { Version } from '../../store/rows/version.ts'
import type { ImportJob, ImportPart } from '../imports/imports.ts'
import { endImport, findImport, importManifest } from '../imports/status.ts'
import type { ListedFile } from './announce.ts'
import { manifestOf } from './file.ts'
import type { ExportJob } from './rows/jobs.ts'
import { cancelJob, findExport } from './status.ts'

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
