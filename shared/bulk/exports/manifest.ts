/** The manifest of an export: its files, and where they are. */

import type { Storage } from '../../platform/storage/storage.ts'
import { absoluteUrl } from '../../request/reply.ts'
import type { Services } from '../../services.ts'
import type { ExportFiles, ListedFile } from './announce.ts'
import { fileKey } from './file.ts'
import { listFiles } from './rows/files.ts'
import type { ExportJob } from './rows/jobs.ts'

/**
 * Makes the manifest of one page, or of all; `sign`: for callers who fetch the files from the storage itself.
 * https://hl7.org/fhir/uv/bulkdata/STU2/export.html#response---complete-status
 */
export async function manifestOf(
  services: Services,
  { id, at, input }: ExportJob,
  { page, sign }: { readonly page?: number; readonly sign?: Storage['sign'] } = {},
): Promise<ExportFiles & { readonly request: string }> {
  const files = await listFiles(services.database, id, page)
  const all = await Promise.all(
    files.map(async ({ kind, type, number, part, seq, rows, goesOn }) => {
      const name = fileName(kind, type, number)
      const key = fileKey(input.projectId, id, part, seq)
      const url =
        (await sign?.(key, SIGNED_SECONDS, contentHeaders(name))) ??
        `${statusUrl(services, id)}/files/${name}`
      return { kind, part, seq, goesOn, file: { type, url, count: rows } }
    }),
  )
  const going = new Map(
    all.filter(({ goesOn }) => goesOn).map(({ part, seq, file }) => [`${part} ${seq}`, file.url]),
  )
  const of = (wanted: string) =>
    all.flatMap(({ kind, part, seq, file }): ListedFile | [] => {
      if (kind !== wanted) return []
      const continuesInFile = going.get(`${part} ${seq + 1}`)
      return continuesInFile === undefined ? file : { ...file, continuesInFile }
    })
  const deleted = of('deleted')
  return {
    transactionTime: at?.toISOString(),
    request: input.request,
    requiresAccessToken: sign === undefined,
    ...(input.organizedBy === undefined ? {} : { outputOrganizedBy: input.organizedBy }),
    output: of('output'),
    ...(deleted.length === 0 ? {} : { deleted }),
    error: of('error'),
  }
}

/** As it is sent: files that are organized by patients hold several types. Records name that of the patients. */
export function manifestText(manifest: ExportFiles): string {
  if (manifest.outputOrganizedBy === undefined) return JSON.stringify(manifest)
  const output = manifest.output.map((file) => ({ ...file, type: undefined }))
  return JSON.stringify({ ...manifest, output })
}

/** Time to begin a download; who comes later reads the manifest again. */
const SIGNED_SECONDS = 300

export function contentHeaders(name: string) {
  return {
    'Content-Type': 'application/fhir+ndjson',
    'Content-Disposition': `attachment; filename="${name}"`,
  }
}

function fileName(kind: string, type: string, number: number): string {
  return kind === 'output' ? `${number}.${type}.ndjson` : `${number}.${kind}.${type}.ndjson`
}

export function statusUrl(services: Services, id: string): string {
  return absoluteUrl(services, `bulkdata/export/${id}`)
}
