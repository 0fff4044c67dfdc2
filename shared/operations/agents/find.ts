/** The Agents and Devices that operations name, and operations on all Agents of a search. */
import type { Principal } from '../../access/principal.ts'
import {
  badRequest,
  HttpError,
  ignoreClientError,
  multipleMatches,
  notFound,
} from '../../core/errors.ts'
import { parseReference, type Resource } from '../../fhir/resource.ts'
import { parametersResource, toInteraction } from '../../request/parameters.ts'
import { absoluteUrl, fhirBases, jsonReply } from '../../request/reply.ts'
import type { FhirReply, OperationCall } from '../../request/request.ts'
import type { Services } from '../../request/services.ts'
import { readSearch } from '../../rest/criteria.ts'
import { parseSearch } from '../../search/language/search.ts'
import { parseVersion } from '../../store/rows/rows.ts'

export type Found = Resource & { readonly id: string }

/** By the id of the path, or by `?identifier=`. Errors: 400 without both, 404, 412 for several. */
export async function findAgent(call: OperationCall): Promise<Found> {
  const { services, principal, id, request } = call
  if (id !== undefined) {
    return parseVersion(await services.repository.read(principal, 'Agent', id)) as Found
  }
  const identifier = request.query.get('identifier')
  if (identifier === null) throw badRequest('Must specify agent ID or identifier')
  const query = new URLSearchParams({ identifier, _count: '2' })
  const found = await search(services, principal, 'Agent', query)
  const [agent, second] = found
  if (agent === undefined) throw notFound()
  if (second !== undefined) throw multipleMatches()
  return agent
}

/**
 * Finds a Device by `Device/id` or a search such as `Device?identifier=…`. Errors: 400 for anything else, for no or
 * several Devices, and for one without a URL.
 */
export async function findDestination(
  services: Services,
  principal: Principal,
  destination: string,
): Promise<string> {
  const device = await findDevice(services, principal, destination)
  const { url } = device
  if (typeof url === 'string' && url !== '') return url
  throw badRequest('Destination device missing url', 'Device.url')
}

async function findDevice(
  services: Services,
  principal: Principal,
  destination: string,
): Promise<Resource> {
  const target = parseReference(destination)
  if (target?.type === 'Device') {
    const version = await services.repository
      .read(principal, 'Device', target.id)
      .catch(ignoreClientError)
    if (version !== undefined) return parseVersion(version)
  }
  const [, criteria] = /^Device\/?\?(.+)$/.exec(destination) ?? []
  if (criteria !== undefined) {
    const query = new URLSearchParams(criteria)
    query.set('_count', '2')
    const [device, second] = await search(services, principal, 'Device', query)
    if (second !== undefined) throw badRequest('Destination matches several devices', 'destination')
    if (device !== undefined) return device
  }
  throw badRequest('Destination device not found', 'destination')
}

async function search(
  services: Services,
  principal: Principal,
  type: string,
  query: URLSearchParams,
): Promise<readonly Found[]> {
  const own = principal.project.parameters
  const request = parseSearch(type, query, {
    own,
    fhirUrls: fhirBases(services, principal.project.id),
  })
  const page = await services.repository.search(principal, request)
  return page.versions.map((version) => parseVersion(version) as Found)
}

const MOST_AGENTS = 100

/**
 * Returns a Bundle with a Parameters resource per Agent: `agent`, and `result` or the OperationOutcome of a failure.
 * `own` are the query parameters of the operation. Errors: 400 for an invalid search.
 */
export async function forAgents(
  call: OperationCall,
  own: readonly string[],
  run: (agent: Found) => Promise<Resource>,
): Promise<FhirReply> {
  const { services, principal, operation } = call
  const query = new URLSearchParams(call.request.query)
  for (const name of own) query.delete(name)
  const request = await readSearch(toInteraction(call), 'Agent', query)
  if (request.count > MOST_AGENTS) {
    throw badRequest(`"_count" must be at most ${MOST_AGENTS}`, '_count')
  }
  const page = await services.repository.search(principal, request)
  const agents = page.versions.map((version) => parseVersion(version) as Found)
  const entry = await Promise.all(
    agents.map(async (agent) => {
      const result = await run(agent).catch(toOutcome)
      const resource = parametersResource([
        ['agent', 'resource', agent],
        ['result', 'resource', result],
      ])
      return { resource }
    }),
  )
  const next = new URLSearchParams(call.request.query)
  next.set('_cursor', page.next ?? '')
  const url = absoluteUrl(services, `Agent/$${operation.name}?${next}`)
  return jsonReply(200, {
    resourceType: 'Bundle',
    type: 'collection',
    ...(page.next === undefined ? {} : { link: [{ relation: 'next', url }] }),
    ...(entry.length === 0 ? {} : { entry }),
  })
}

function toOutcome(error: unknown): Resource {
  if (error instanceof HttpError) return error.outcome
  throw error
}
