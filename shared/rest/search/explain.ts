/** `_explain=true`: what a search costs, instead of its result. */

import { badRequest, forbidden, issue, outcome } from '../../errors.ts'
import { type Link, type SearchEntry, searchBundle } from '../../fhir/bundle.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import { WORDS } from '../../fhir/resource-text.ts'
import { createMaintenance } from '../../jobs/upkeep/maintenance.ts'
import { absoluteUrl, textReply } from '../../request/reply.ts'
import type { FhirReply, Interaction } from '../../request/request.ts'
import { readSearch } from './criteria.ts'

/** Errors: 400 for what is neither true nor false. */
export function isExplained(query: URLSearchParams): boolean {
  const value = query.get('_explain') ?? 'false'
  if (value === 'true' || value === 'false') return value === 'true'
  throw badRequest(`Invalid _explain: ${value}; use true or false`, '_explain')
}

/**
 * No rows, but what they cost, and how far the index of the Project's own parameters is. The plan tells
 * of more than the caller's own data. Errors: 403.
 */
export async function explain(
  interaction: Interaction,
  type: string,
  query: URLSearchParams,
): Promise<FhirReply> {
  const { services, principal } = interaction
  if (!principal.isProjectAdmin && !principal.isSuperAdmin) throw forbidden()
  const unready = await unreadyIssues(interaction, type)
  const parameters = ready(principal.project.parameters)
  const asked = { ...principal, project: { ...principal.project, parameters } }
  const request = await readSearch({ ...interaction, principal: asked }, type, query)
  const { driver, sql, plan } = await services.repository.explain(asked, request)
  const text = `Found by ${driver ?? 'nothing'}`
  const told = issue('information', 'informational', text, undefined, [sql, ...plan].join('\n'))
  const resource = JSON.stringify(outcome(undefined, told, ...unready))
  const links: Link[] = [
    { relation: 'self', url: absoluteUrl(services, `${type}?${query.toString()}`) },
  ]
  const entries: SearchEntry[] = [{ fullUrl: '', resource, mode: 'outcome' }]
  return textReply(200, searchBundle({ type: 'searchset', links }, entries))
}

/** A search by them can be explained before it can be made. */
function ready(own: OwnParameters | undefined): OwnParameters | undefined {
  if (own === undefined) return undefined
  const types = [...own.types].map(([type, codes]) => {
    const all = [...codes].map(([code, one]) => [code, { ...one, isReady: true }] as const)
    return [type, new Map(all)] as const
  })
  return { ...own, types: new Map(types), fullText: own.fullText && 'ready' }
}

async function unreadyIssues({ services, principal }: Interaction, type: string) {
  const { project } = principal
  const own = [...(project.parameters?.types.get(type)?.values() ?? [])]
  const unready = own.filter(({ isReady }) => !isReady).map(({ code }) => code)
  if (project.parameters?.fullText === 'indexing') unready.push(...WORDS)
  if (unready.length === 0) return []
  const job = await services.repository.feature(createMaintenance).ownIndexProgress(principal)
  const { seen = 0, total = 0 } = job ?? {}
  return unready.map((code) => {
    const text = `Search parameter ${code} is not ready: ${seen} of ${total} resources are indexed`
    return issue('warning', 'incomplete', text, code)
  })
}
