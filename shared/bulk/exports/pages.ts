/**
 * `allowPartialManifests`: files that are whole are told of while others are made. A page that was given
 * never changes, except that it gains a link to the next one.
 * https://build.fhir.org/ig/HL7/bulk-data/export.html
 */

import { notFound } from '../../errors.ts'
import type { FhirRequest } from '../../request/request.ts'
import type { Services } from '../../services.ts'
import { manifestOf, statusUrl } from './manifest.ts'
import { addPage } from './rows/files.ts'
import type { ExportJob } from './rows/jobs.ts'

/**
 * The manifest of the page that is asked for; undefined: there is no such page yet. Errors: 404 for one
 * that will never be.
 */
export async function pageOf(services: Services, job: ExportJob, { query }: Asked) {
  const page = Number(query.get('page') ?? 1)
  if (!Number.isInteger(page) || page < 1) throw notFound()
  const isRunning = job.state === 'accepted' || job.state === 'active'
  const pages = await addPage(services.database, job.id)
  if (page > pages + 1) throw notFound()
  if (page > pages) {
    if (isRunning) return undefined
    if (page > 1) throw notFound()
  }
  const manifest = await manifestOf(services, job, { page })
  if (page >= pages) return manifest
  const url = `${statusUrl(services, job.id)}?page=${page + 1}`
  return { ...manifest, link: [{ relation: 'next', url }] }
}

type Asked = Pick<FhirRequest, 'query'>
