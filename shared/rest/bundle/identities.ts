/**
 * Resolves the target of each writing entry first, so that entries may refer to each other in cycles. One statement
 * runs all searches.
 */
import { randomUUIDv7 } from 'node:crypto'
import {
  badRequest,
  HttpError,
  issue,
  multipleMatches,
  outcome,
  RaceLost,
} from '../../core/errors.ts'
import { mapStrings } from '../../fhir/json.ts'
import { isObject } from '../../fhir/resource.ts'
import type { FhirContext } from '../../request/request.ts'
import type { SearchRequest } from '../../search/language/search-request.ts'
import { normalId } from '../../store/rows/context.ts'
import type { Version } from '../../store/rows/version.ts'
import { requireMatchedId, requireUpdateAsCreate } from '../../store/write/conditional.ts'
import { mostDeletions } from '../conditional.ts'
import {
  conditionalReferences,
  criteriaKey,
  findMatches,
  type Matches,
  requireSingleMatch,
} from '../conditional-references.ts'
import { parseCriteriaQuery, readCondition } from '../criteria.ts'
import { type Entry, type EntryPlan, entryPath, groupByStage, URN, urnKey } from './entries.ts'

export interface Identity {
  readonly type: string
  id: string
  readonly condition: SearchRequest | undefined
  match: Version | undefined
  /** True when the id was generated for this entry; no such resource exists yet. */
  isNew: boolean
}

export interface Step {
  readonly entry: Entry
  /** Undefined for entries that write no resource themselves. */
  readonly identity: Identity | undefined
  /** True when an earlier entry has the same criteria without a match, and creates the resource of both. */
  readonly isTwin: boolean
  readonly condition: SearchRequest | undefined
  /** The resources that a conditional delete removes. */
  readonly matches: readonly Version[]
  readonly identities: Identities
}

const WRITTEN: ReadonlySet<string> = new Set(['create', 'update', 'conditional-update'])

/** `hasQuestion`: conditional references are possible. Errors: 400 for invalid criteria or references. */
export function planEntry(context: FhirContext, entry: Entry, hasQuestion: boolean): EntryPlan {
  const { resource } = entry
  const references =
    hasQuestion && resource !== undefined && WRITTEN.has(entry.route.kind)
      ? conditionalReferences(context, resource)
      : []
  const criteria = criteriaFor(entry)
  if (criteria === undefined) return { entry, key: '', condition: undefined, references }
  const { type, query } = criteria
  const criterion = readCondition(context, type, query)
  const most = entry.route.kind === 'conditional-delete' ? mostDeletions(criterion, query) : 1
  const condition = { ...criterion, count: most + 1 }
  return { entry, key: criteriaKey(type, query), condition, references }
}

function criteriaFor({ route, headers, query }: Entry) {
  switch (route.kind) {
    case 'create': {
      const criteria = headers['if-none-exist']
      return criteria === undefined
        ? undefined
        : { type: route.type, query: parseCriteriaQuery(route.type, criteria) }
    }
    case 'conditional-update':
    case 'conditional-patch':
    case 'conditional-delete':
      return { type: route.type, query }
    default:
      return undefined
  }
}

/** `failed` is called for each invalid entry and may throw. Errors of an entry: 400, 403, 412. */
export async function identify(
  context: FhirContext,
  plans: readonly EntryPlan[],
  failed: (entry: Entry, error: unknown) => void,
): Promise<Step[]> {
  const asked = new Map<string, SearchRequest>()
  for (const { key, condition, references } of plans) {
    if (condition !== undefined) asked.set(key, condition)
    for (const { text, condition: search } of references) asked.set(text, search)
  }
  const matches = await findMatches(context, asked)
  const targets = new Map<string, string>()
  const known = new Map<string, Identity>()
  const identified: Omit<Step, 'identities'>[] = []
  const own = assignNewIds(plans, matches)
  for (const plan of own.plans) {
    try {
      for (const reference of plan.references) {
        targets.set(
          reference.text,
          requireSingleMatch(reference, matches, own.made.get(reference.key)),
        )
      }
      const isTwin = known.get(plan.key)?.isNew === true
      identified.push({
        entry: plan.entry,
        identity: resolveIdentity(context, plan, matches, known),
        isTwin,
        condition: plan.condition,
        matches: deletedBy(plan, matches),
      })
    } catch (error) {
      failed(plan.entry, error)
    }
  }
  const links = mapBundleLinks(identified, targets)
  return identified.map((step) => {
    const identities = { ...links, base: fullUrlBase(step.entry) }
    return { ...step, identities }
  })
}

/** Errors: 412 for more matches than may be deleted. */
function deletedBy({ entry, key, condition }: EntryPlan, matches: Matches): readonly Version[] {
  if (entry.route.kind !== 'conditional-delete' || condition === undefined) return []
  const found = matches.get(key)
  if (found?.status !== 'fulfilled') throw found?.reason
  const { versions } = found.value
  if (versions.length >= condition.count) throw severalMatches(entry)
  return versions
}

function resolveIdentity(
  context: FhirContext,
  plan: EntryPlan,
  matches: Matches,
  known: Map<string, Identity>,
): Identity | undefined {
  const { route } = plan.entry
  switch (route.kind) {
    case 'create':
      if (plan.condition === undefined) return fresh(route.type, plan)
      return matched(context, plan, { type: route.type, matches, known })
    case 'conditional-update':
    case 'conditional-patch':
      return matched(context, plan, { type: route.type, matches, known })
    case 'update':
    case 'patch':
    case 'delete': {
      const { type, id } = route
      return { type, id, condition: undefined, match: undefined, isNew: false }
    }
    default:
      return undefined
  }
}

function fresh(type: string, { id = randomUUIDv7(), condition }: EntryPlan): Identity {
  return { type, id, condition, match: undefined, isNew: true }
}

interface MatchedType {
  readonly type: string
  readonly matches: Matches
  readonly known: Map<string, Identity>
}

function matched(
  context: FhirContext,
  plan: EntryPlan,
  { type, matches, known }: MatchedType,
): Identity {
  const { entry, key, condition } = plan
  const same = known.get(key)
  if (same !== undefined) return same
  const found = matches.get(key)
  if (found?.status !== 'fulfilled') throw found?.reason
  const [match, second] = found.value.versions
  if (second !== undefined) throw severalMatches(entry)
  if (match !== undefined && entry.route.kind === 'conditional-update') {
    requireMatchedId(entry.resource?.id, match)
  }
  const identity =
    match === undefined
      ? unmatched(context, plan, type)
      : { type, id: match.id, condition, match, isNew: false }
  known.set(key, identity)
  return identity
}

function unmatched(context: FhirContext, plan: EntryPlan, type: string): Identity {
  const { entry, condition } = plan
  if (entry.route.kind === 'conditional-patch') {
    const text = 'Conditional PATCH did not match any resources'
    const where = entryPath(entry.index, '.request.url')
    throw new HttpError(
      404,
      outcome('not-found', issue('error', 'not-found', text, { expression: where })),
    )
  }
  const chosen = entry.route.kind === 'conditional-update' ? entry.resource?.id : undefined
  if (typeof chosen !== 'string') return fresh(type, plan)
  requireUpdateAsCreate(context.principal)
  return { type, id: normalId(chosen), condition, match: undefined, isNew: true }
}

function severalMatches(entry: Entry): HttpError {
  const text = `Conditional ${entry.method} matched multiple resources`
  const { id, issue: issues } = multipleMatches(text).outcome
  const expression = [entryPath(entry.index, '.request.url')]
  return new HttpError(412, outcome(id, ...issues.map((item) => ({ ...item, expression }))))
}

/** Switches to a match that another request created. Errors: 409 once an entry refers to the generated id. */
export function takeMatch(identity: Identity, { targets, used }: Identities, match: Version): void {
  const target = `${identity.type}/${identity.id}`
  if (used.has(target)) throw new RaceLost()
  for (const [link, meant] of targets) {
    if (meant === target) targets.set(link, `${match.type}/${match.id}`)
  }
  Object.assign(identity, { id: match.id, match, isNew: false })
}

function mapBundleLinks(
  entries: readonly { readonly entry: Entry; readonly identity: Identity | undefined }[],
  targets: ReadonlyMap<string, string>,
): Omit<Identities, 'base'> {
  const links = new Map(targets)
  for (const { entry, identity } of entries) {
    const { fullUrl, method } = entry
    if (fullUrl === undefined || identity === undefined) continue
    const target = `${identity.type}/${identity.id}`
    // The URL of a conditional entry does not name the id that the resource has here.
    const hasOtherId = method === 'POST' || identity.condition !== undefined
    if (/^urn:/i.test(fullUrl)) links.set(urnKey(fullUrl), target)
    else if (hasOtherId) links.set(fullUrl, target)
  }
  return { targets: links, used: new Set() }
}

/** Errors: 400 when two entries of a transaction change the same resource, or one deletes the match of a POST. */
export function requireDistinct(steps: readonly Step[]): void {
  const seen = new Set<string>()
  // Deletions come first. A PUT or PATCH may change the match of a POST, which only reads it.
  for (const { stage, items } of groupByStage(steps)) {
    for (const { entry, identity, matches } of items) {
      for (const { type, id } of [...(identity === undefined ? [] : [identity]), ...matches]) {
        const key = `${type}/${normalId(id)}`
        if (seen.has(key)) {
          const text = 'Duplicate resource identity found in Bundle'
          throw badRequest(text, entryPath(entry.index))
        }
        if (stage !== 'POST') seen.add(key)
      }
    }
  }
}

// Links between entries: `urn:uuid:…` and `urn:oid:…` anywhere in a string, and absolute URLs of new resources and of
// matches. https://hl7.org/fhir/R4/http.html#trules

interface Identities {
  /** fullUrl of an entry → `Type/id` it stands for. */
  readonly targets: Map<string, string>
  /** Targets referred to by entries that have run. */
  readonly used: Set<string>
  /** Precedes relative references of the entry; empty without a RESTful fullUrl. */
  readonly base: string
}

const RESTFUL = /^(https?:.*\/)[A-Z][A-Za-z]+\/[A-Za-z0-9\-.]{1,64}(?:\/_history\/[^/]+)?$/

/** Returns the part of the fullUrl before `Type/id`. https://hl7.org/fhir/R4/bundle.html#references */
function fullUrlBase({ fullUrl = '' }: Entry): string {
  return RESTFUL.exec(fullUrl)?.[1] ?? ''
}

/** Replaces every link; returns the same value if there is none. */
export function replaceLinks<T>(content: T, identities: Identities): T {
  if (identities.targets.size === 0) return content
  return mapStrings(content, (text, name) => rewriteText(text, identities, name))
}

function rewriteText(text: string, identities: Identities, name: string): string {
  const { targets, used, base } = identities
  const target = name === 'reference' ? (targets.get(base + text) ?? targets.get(text)) : undefined
  if (target !== undefined) {
    used.add(target)
    return target
  }
  if (!/urn(?::|%3A)/i.test(text)) return text
  return text.replace(URN, (urn) => {
    const meant = targets.get(urnKey(urn)) ?? urn
    used.add(meant)
    return meant
  })
}

// Conditional references to the same bundle are resolved last. https://hl7.org/fhir/R4/http.html#trules

/** Created resources as `Type/id`, by the criteria that match them. */
type Made = ReadonlyMap<string, readonly string[]>

/** Assigns ids to new resources, so that references can be resolved early. */
function assignNewIds(
  plans: readonly EntryPlan[],
  matches: Matches,
): { readonly plans: readonly EntryPlan[]; readonly made: Made } {
  const made = new Map<string, string[]>()
  if (plans.every(({ references }) => references.length === 0)) return { plans, made }
  const twins = new Set<string>()
  const named = plans.map((plan) => {
    const type = createdType(plan, matches)
    if (type === undefined || twins.has(plan.key)) return plan
    const { key, id = randomUUIDv7() } = plan
    if (key !== '') twins.add(key)
    for (const found of new Set([key, ...identifierKeys(type, plan)])) {
      made.set(found, [...(made.get(found) ?? []), `${type}/${id}`])
    }
    return { ...plan, id }
  })
  return { plans: named, made }
}

/** Returns undefined for entries that create nothing or name the id. */
function createdType({ entry, key, condition }: EntryPlan, matches: Matches): string | undefined {
  const { route, resource } = entry
  if (route.kind !== 'create' && route.kind !== 'conditional-update') return undefined
  if (route.kind === 'conditional-update' && resource?.id !== undefined) return undefined
  if (condition === undefined) return route.type
  const found = matches.get(key)
  const isMissing = found?.status === 'fulfilled' && found.value.versions.length === 0
  return isMissing ? route.type : undefined
}

function identifierKeys(type: string, { entry }: EntryPlan): string[] {
  const identifier = entry.resource?.identifier
  if (!Array.isArray(identifier)) return []
  return identifier.filter(isObject).flatMap(({ system, value }) => {
    if (typeof value !== 'string') return []
    const tokens = typeof system === 'string' ? [`${system}|${value}`, value] : [`|${value}`, value]
    return tokens.map((token) => criteriaKey(type, new URLSearchParams({ identifier: token })))
  })
}
