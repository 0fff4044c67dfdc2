/**
 * Steps shared by several interactions: validation of a body and its profiles, the reply of a write, paged replies.
 * https://hl7.org/fhir/R4/profiling.html#resources
 */

import { type Principal, type ProjectContext, systemPrincipal } from '../access/principal.ts'
import {
  allOk,
  badRequest,
  badStructure,
  created,
  type Issue,
  invalid,
  outcome,
  tooCostly,
} from '../core/errors.ts'
import { yieldTurn } from '../core/yielding.ts'
import { type BundleHead, bundlePieces, bundleText } from '../fhir/bundle.ts'
import { mapStrings, withoutEmpty, withoutEmptyMembers } from '../fhir/json.ts'
import { isTypeCanonical } from '../fhir/published.ts'
import { asArray, isObject, isResource, type Resource, storedReference } from '../fhir/resource.ts'
import { createSigner, toBinaryPath } from '../request/binary/attachments.ts'
import {
  absoluteUrl,
  emptyReply,
  fhirBases,
  outcomeReply,
  piecesReply,
  textReply,
  versionHeaders,
  versionText,
  withoutBase,
} from '../request/reply.ts'
import type { CallerContext, FhirContext, FhirReply } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { equals, find } from '../store/lookups.ts'
import { normalId } from '../store/rows/context.ts'
import { checkedDefinitions, SEARCH_PARAMETER } from '../store/rows/custom-parameters.ts'
import type { WriteResult } from '../store/rows/version.ts'
import { boundCodes } from '../terminology/bound-codes.ts'
import {
  type CheckedResource,
  type Claim,
  type Claimed,
  listClaims,
  type Profile,
} from '../validation/profile-run.ts'
import { toFhirPath } from '../validation/shapes.ts'
import { requireValid } from '../validation/validate.ts'
import { recordWrite } from './audited-writes.ts'
import { RESPONSE, responseIssues } from './questionnaires.ts'

export interface Accepted {
  readonly resource: Resource
  readonly warnings: readonly Issue[]
}

/** Validates the body of a create or update. Errors: 400 for a wrong type or with validation issues. */
export async function acceptResource(
  context: FhirContext,
  type: string,
  body: unknown,
): Promise<Accepted> {
  const found = isResource(body) ? body.resourceType : undefined
  if (!isResource(body) || found !== type) {
    throw badStructure(
      `Incorrect resource type: expected ${type}, but found ${String(found).slice(0, 64)}`,
    )
  }
  return validateForWrite(context, body)
}

/** False when pre-commit bots are disabled. */
export function mayAskBots({ services, principal, request }: FhirContext): boolean {
  const isOn = services.config.preCommitBots && principal.project.preCommit === true
  return isOn && request.isPreCommitted !== true
}

/** Errors: 400 unless the body has the id of the URL. */
export function requireSameId(sent: unknown, id: string): void {
  if (sent === undefined) throw badRequest('Missing id', 'id')
  if (typeof sent !== 'string' || normalId(sent) !== id) {
    throw badRequest('Incorrect resource ID', 'id')
  }
}

/** Errors: 400 with validation issues. Logs warnings without their text, which may quote values. */
export async function validateForWrite(context: FhirContext, body: Resource): Promise<Accepted> {
  const { services, principal } = context
  const { project } = principal
  const strict = project.strictMode
  const own = withOwnMeta(context, body)
  const sent = withRelativeAddresses(context, strict ? withoutEmptyMembers(own) : withoutEmpty(own))
  const resource = withDefaultProfiles(sent, project)
  const claims = listClaims(resource)
  const claimed = claims.length === 0 ? {} : await loadProfiles(context, resource, claims)
  const valid = requireValid(resource, { strict, ...claimed, takesCodes: project.takesCodes })
  const warnings = [...valid, ...(await answerIssues(context, resource))]
  await requireUsable(context, resource)
  if (warnings.length > 0) {
    const issues = warnings.map(({ code, expression }) => `${code} ${expression}`)
    services.log.warn({ project: project.id, issues: issues.slice(0, 10) }, 'validation warnings')
  }
  return { resource, warnings }
}

async function loadProfiles(
  context: FhirContext,
  resource: Resource,
  claims: ReturnType<typeof listClaims>,
) {
  const { services, principal } = context
  const { profiles } = await findProfiles(context, claims)
  const valueSets = profiles.flatMap(({ profile }) => profile.valueSets)
  const { codes } = await boundCodes(services, principal.project, valueSets, resource)
  return { profiles, codes }
}

/** Errors: 400 if the Project rejects responses that do not fit their Questionnaire. */
async function answerIssues(
  { services, principal }: FhirContext,
  resource: Resource,
): Promise<readonly Issue[]> {
  if (resource.resourceType !== RESPONSE) return []
  const isRefused = principal.project.refusesResponses === true
  const issues = await responseIssues(services, principal, resource, isRefused)
  if (issues.some(({ severity }) => severity === 'error')) throw invalid(issues)
  return issues
}

/** Drops accounts unless in extended mode or the URL: clients send back responses that omit them. */
function withOwnMeta({ request, preferences }: FhirContext, resource: Resource): Resource {
  if (preferences.extended || request.query.has('_account')) return resource
  const { meta, ...rest } = resource
  if (!isObject(meta) || !('account' in meta || 'accounts' in meta)) return resource
  const { account: _account, accounts: _accounts, ...own } = meta
  return Object.keys(own).length === 0 ? rest : { ...rest, meta: own }
}

/** Rewrites the server's absolute references and Binary URLs to `Type/id`, the stored form. */
function withRelativeAddresses({ services, principal }: FhirContext, resource: Resource): Resource {
  const bases = fhirBases(services, principal.project.id)
  return mapStrings(resource, (text, name) => {
    if (name === 'url' || name === 'path') return toBinaryPath(services.config.baseUrl, bases, text)
    if (name !== 'reference') return text
    return storedReference(withoutBase(bases, text)) ?? text
  })
}

const CANDIDATES = 100

/** Errors: 400 for a base, type, code or expression that cannot be indexed, and for an existing code. */
export async function requireUsable(
  { services, principal }: CallerContext,
  resource: Resource,
): Promise<void> {
  if (resource.resourceType !== SEARCH_PARAMETER) return
  const [first, ...others] = checkedDefinitions(resource)
  if (first === undefined) return
  const reader = systemPrincipal(principal.project, 'project')
  const conditions = [equals('code', 'token', first.code), equals('status', 'token', 'active')]
  const { repository } = services
  const same = await find(repository, reader, 'SearchParameter', { conditions, count: CANDIDATES })
  for (const { base } of [first, ...others]) {
    const other = same.find((item) => item.id !== resource.id && asArray(item.base).includes(base))
    if (other === undefined) continue
    const text = `${base} has a search parameter ${first.code} already: SearchParameter/${other.id}`
    throw badRequest(text, 'SearchParameter.code')
  }
}

export interface PageEntry {
  readonly content: string
  /** Returns the JSON text of the entry; called once. */
  readonly write: () => string
}

/** Larger pages are streamed: a full text and its bytes would use much memory. */
const LARGE_PAGE = 262_144

export async function pageReply(
  { services, principal, request, preferences }: FhirContext,
  head: BundleHead,
  entries: readonly PageEntry[],
): Promise<FhirReply> {
  const size = entries.reduce((sum, { content }) => sum + content.length, 0)
  const isSmall = size < LARGE_PAGE
  if (isSmall || request.takesPieces !== true) {
    const texts: string[] = []
    for (const { write } of entries) {
      texts.push(write())
      if (!isSmall) await yieldTurn()
    }
    return textReply(200, bundleText(head, texts))
  }
  const contents = entries.map(({ content }) => content)
  const sign = await createSigner(services, principal, contents)
  const waiting = entries.toReversed()
  // Entries are released once written, so a slow reader holds only unread ones.
  function* written(): Iterable<string> {
    for (let entry = waiting.pop(); entry !== undefined; entry = waiting.pop()) {
      yield sign(entry.write())
    }
  }
  return piecesReply(200, bundlePieces(head, written(), preferences.pretty))
}

const MAX_PROFILES = 20
const MAX_DISTINCT = 100

/** Applies the Project's default profile to a resource without claims. */
export function withDefaultProfiles(resource: Resource, project: ProjectContext): Resource {
  const profile = project.defaultProfiles?.get(resource.resourceType)
  if (profile === undefined || resource.meta?.profile !== undefined) return resource
  return { ...resource, meta: { ...resource.meta, profile } }
}

interface UnknownProfile extends Pick<CheckedResource, 'steps'> {
  readonly canonical: string
}

const NONE = { profiles: [], unknown: [] } as const

/** Errors: 400 for too many profiles. */
export async function findProfiles(
  { services, principal }: { readonly services: Services; readonly principal: Principal },
  claims: readonly Claim[],
): Promise<{ readonly profiles: readonly Claimed[]; readonly unknown: readonly UnknownProfile[] }> {
  if (claims.length === 0) return NONE
  requireFew(claims)
  const found = new Map<string, Profile | undefined>()
  for (const canonical of new Set(claims.flatMap(({ canonicals }) => canonicals))) {
    const { repository } = services
    found.set(canonical, await services.profiles.find(repository, principal.project, canonical))
  }
  const profiles: Claimed[] = []
  const unknown: UnknownProfile[] = []
  for (const { canonicals, ...place } of claims) {
    for (const canonical of canonicals) {
      const profile = found.get(canonical)
      if (profile !== undefined) profiles.push({ ...place, profile })
      else if (!isTypeCanonical(canonical, place.resource.resourceType)) {
        unknown.push({ canonical, steps: place.steps })
      }
    }
  }
  return { profiles, unknown }
}

function requireFew(claims: readonly Claim[]): void {
  const crowded = claims.find(({ canonicals }) => canonicals.length > MAX_PROFILES)
  if (crowded !== undefined) {
    const path = toFhirPath([...crowded.steps, 'meta', 'profile'])
    throw tooCostly(`A resource may claim ${MAX_PROFILES} profiles`, path)
  }
  const distinct = new Set(claims.flatMap(({ canonicals }) => canonicals))
  if (distinct.size > MAX_DISTINCT) {
    throw tooCostly(`The resources in one body may claim ${MAX_DISTINCT} profiles`)
  }
}

/** Records the write and replies as the Prefer header requests. */
export async function finishWrite(
  context: FhirContext,
  written: WriteResult,
  warnings: readonly Issue[] = [],
): Promise<FhirReply> {
  await recordWrite(context, written)
  return writeReply(context, written, warnings)
}

function writeReply(
  context: FhirContext,
  written: WriteResult,
  warnings: readonly Issue[],
): FhirReply {
  const { returned } = context.preferences
  const isNew = written.outcome === 'created'
  const status = isNew ? 201 : 200
  const location = `${written.type}/${written.id}/_history/${written.ver}`
  const headers = {
    ...versionHeaders(written),
    ...(isNew || context.request.method === 'POST'
      ? { Location: absoluteUrl(context.services, location) }
      : {}),
  }
  const { lastUpdated } = written
  if (returned === 'minimal') return { ...emptyReply(status, headers), lastUpdated }
  if (returned === 'representation') {
    return { ...textReply(status, versionText(context, written), headers), lastUpdated }
  }
  const { id, issue } = isNew ? created : allOk
  return { ...outcomeReply(status, outcome(id, ...issue, ...warnings), headers), lastUpdated }
}
