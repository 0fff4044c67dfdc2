/**
 * Which resource each writing entry of a bundle is about, found out before anything is written, so
 * that entries may refer to each other in any order and in circles.
 */
import { randomUUIDv7 } from 'node:crypto'
import type { Principal } from '../access/principal.ts'
import { badRequest, HttpError, multipleMatches } from '../errors.ts'
import { issue, outcome } from '../fhir/outcome.ts'
import type { SearchRequest } from '../fhir/search.ts'
import { type Entry, entryPath } from './bundle-entries.ts'
import { type Identities, urnKey } from './bundle-references.ts'
import { criteriaOf, readCondition } from './conditional.ts'
import type { Interaction } from './interaction.ts'
import { canonicalId } from './route.ts'

export interface Identity {
  readonly type: string
  readonly id: string
  /** The criteria of a conditional entry. */
  readonly condition: SearchRequest | undefined
  /** The id was made for this entry; nothing exists under it yet. */
  readonly isNew: boolean
}

/** A racing request made the resource that this bundle was to make; a second try finds it. */
export class IdentityLost extends Error {}

/** Undefined for entries that write no resource of their own. Errors: 400, 412 at the entry's url. */
export async function identify(
  interaction: Interaction,
  entry: Entry,
  known: Map<string, Identity>,
): Promise<Identity | undefined> {
  const { route } = entry
  switch (route.kind) {
    case 'create': {
      const criteria = entry.headers['if-none-exist']
      if (criteria === undefined) return fresh(route.type)
      const query = criteriaOf(criteria)
      return matched(interaction, entry, route.type, query, known)
    }
    case 'conditional-update':
    case 'conditional-patch':
      return matched(interaction, entry, route.type, entry.query, known)
    case 'update':
    case 'patch':
    case 'delete':
      return { type: route.type, id: route.id, condition: undefined, isNew: false }
    default:
      return undefined
  }
}

function fresh(type: string, condition?: SearchRequest): Identity {
  return { type, id: randomUUIDv7(), condition, isNew: true }
}

async function matched(
  interaction: Interaction,
  entry: Entry,
  type: string,
  query: URLSearchParams,
  known: Map<string, Identity>,
): Promise<Identity> {
  const condition = readCondition(interaction, type, query)
  const key = `${type}?${[...query]
    .map((pair) => pair.join('='))
    .sort()
    .join('&')}`
  const same = known.get(key)
  if (same !== undefined) return same
  const { services, principal } = interaction
  const page = await services.repository.search(principal, { ...condition, count: 2 })
  const [match, second] = page.versions
  const identity =
    match === undefined
      ? unmatched(interaction, entry, type, condition)
      : { type, id: match.id, condition, isNew: false }
  if (second !== undefined) throw severalMatches(entry)
  known.set(key, identity)
  return identity
}

function unmatched(
  interaction: Interaction,
  entry: Entry,
  type: string,
  condition: SearchRequest,
): Identity {
  if (entry.route.kind === 'conditional-patch') {
    const text = 'Conditional PATCH did not match any resources'
    const where = entryPath(entry.index, '.request.url')
    throw new HttpError(404, outcome('not-found', issue('error', 'not-found', text, where)))
  }
  const chosen = entry.route.kind === 'conditional-update' ? entry.resource?.id : undefined
  if (typeof chosen !== 'string') return fresh(type, condition)
  if (!mayChooseId(interaction.principal)) {
    throw badRequest('Cannot perform create as update with client-assigned ID')
  }
  return { type, id: canonicalId(chosen), condition, isNew: true }
}

function mayChooseId(principal: Principal): boolean {
  return principal.isSuperAdmin || principal.project.updateAsCreate
}

function severalMatches(entry: Entry): HttpError {
  const text = `Conditional ${entry.method} matched multiple resources`
  const { id, issue: issues } = multipleMatches(text).outcome
  const expression = [entryPath(entry.index, '.request.url')]
  return new HttpError(412, outcome(id, ...issues.map((item) => ({ ...item, expression }))))
}

/** What the links inside a bundle stand for. */
export function identitiesOf(
  entries: readonly { readonly entry: Entry; readonly identity: Identity | undefined }[],
): Identities {
  const identities = new Map<string, string>()
  for (const { entry, identity } of entries) {
    const { fullUrl, method } = entry
    if (fullUrl === undefined || identity === undefined) continue
    const target = `${identity.type}/${identity.id}`
    if (/^urn:/i.test(fullUrl)) identities.set(urnKey(fullUrl), target)
    else if (method === 'POST') {
      identities.set(fullUrl, target)
      // Relative references are relative to the base of the entry's own address.
      const relative = /[A-Za-z]+\/[A-Za-z0-9\-.]{1,64}$/.exec(fullUrl)?.[0]
      if (relative !== undefined) identities.set(relative, target)
    }
  }
  return identities
}

/** Errors: 400 when two entries of a transaction change the same resource. */
export function requireDistinct(
  entries: readonly { readonly entry: Entry; readonly identity: Identity | undefined }[],
): void {
  const seen = new Set<string>()
  for (const { entry, identity } of entries) {
    if (identity === undefined || entry.method === 'POST') continue
    const key = `${identity.type}/${canonicalId(identity.id)}`
    if (seen.has(key)) {
      const text = 'Duplicate resource identity found in Bundle'
      throw badRequest(text, entryPath(entry.index))
    }
    seen.add(key)
  }
}
