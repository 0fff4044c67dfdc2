/** The manifest of an export: its files, and where they are. */
import type { Services } from '../../services.ts'
import { listFiles } from '../../store/exports/files.ts'
import type { ExportJob } from '../../store/exports/jobs.ts'
import { absoluteUrl } from '../interaction.ts'
import type { ExportFiles } from './announce.ts'

/** https://hl7.org/fhir/uv/bulkdata/STU2/export.html#response---complete-status */
export async function manifestOf(
  services: Services,
  { id, at, input }: ExportJob,
  page?: number,
): Promise<ExportFiles & { readonly request: string }> {
  const files = await listFiles(services.database, id, page)
  const of = (wanted: string) =>
    files
      .filter(({ kind }) => kind === wanted)
      .map(({ type, number, kind, rows }) => ({
        type,
        url: `${statusUrl(services, id)}/files/${fileName(kind, type, number)}`,
        count: rows,
      }))
  const deleted = of('deleted')
  return {
    transactionTime: at?.toISOString(),
    request: input.request,
    requiresAccessToken: true,
    output: of('output'),
    ...(deleted.length === 0 ? {} : { deleted }),
    error: of('error'),
  }
}

function fileName(kind: string, type: string, number: number): string {
  return kind === 'output' ? `${number}.${type}.ndjson` : `${number}.${kind}.${type}.ndjson`
}

export function statusUrl(services: Services, id: string): string {
  return absoluteUrl(services, `bulkdata/export/${id}`)
}
