/** Automatic download of external attachments (events.md §10): what was written is noted for a worker. */

import type { WriteResult } from '../store/repository.ts'
import { platformMeta } from './bot.ts'
import type { Interaction } from './interaction.ts'

const EXTERNAL = /"url":\s*"https:\/\//

/** Part of the transaction of the write, where there is one; nothing where downloads are off. */
export async function noteDownloads(
  { services, principal }: Interaction,
  written: WriteResult,
): Promise<void> {
  if (!services.config.autoDownload || written.outcome === 'unchanged') return
  if (!EXTERNAL.test(written.content ?? '')) return
  const { type, id, ver } = written
  const projectId = platformMeta(written).project ?? ''
  if (projectId !== principal.project.id) return
  await services.repository.maintenance.download(principal, { projectId, type, id, ver })
}
