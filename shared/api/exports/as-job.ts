/** An export in the form of an AsyncJob, whose output the SDK reads. */
import type { Services } from '../../services.ts'
import type { ExportJob } from '../../store/exports/jobs.ts'
import type { Version } from '../../store/repository.ts'
import type { ListedFile } from './announce.ts'
import { manifestOf } from './manifest.ts'

/** It is not stored: one version, as it is now. */
export async function exportAsJob(services: Services, job: ExportJob): Promise<Version> {
  const { id, state, input, requested, at, finished } = job
  const lastUpdated = finished ?? at ?? requested
  const files = state === 'completed' ? await manifestOf(services, job) : undefined
  const content = JSON.stringify({
    resourceType: 'AsyncJob',
    id,
    meta: { versionId: '1', lastUpdated: lastUpdated.toISOString() },
    status: state,
    requestTime: requested.toISOString(),
    request: input.request,
    ...(at === null ? {} : { transactionTime: at.toISOString() }),
    ...(files === undefined ? {} : { output: outputOf(files) }),
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

function outputOf({ output, deleted = [], error }: Awaited<ReturnType<typeof manifestOf>>) {
  const named = (name: string, files: readonly ListedFile[]) =>
    files.map(({ type, url }) => ({
      name,
      part: [
        { name: 'type', valueCode: type },
        { name: 'url', valueUri: url },
      ],
    }))
  const parameter = [
    ...named('output', output),
    ...named('deleted', deleted),
    ...named('error', error),
  ]
  return { resourceType: 'Parameters', parameter }
}
