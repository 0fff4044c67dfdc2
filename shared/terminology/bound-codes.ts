/** Codes of bound value sets, for validation. */
import { type ProjectContext, systemPrincipal } from '../access/principal.ts'
import { Cache } from '../core/cache.ts'
import { ignoreClientError } from '../core/errors.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import type { ValueSet } from '../fhir/terminology.ts'
import type { Services } from '../request/services.ts'
import { type CodeList, codeList } from '../validation/shapes.ts'
import { openTerminology, type Terminology } from './find.ts'
import { evaluation } from './members.ts'
import { expandValueSet, filterMembers } from './value-set-codes.ts'

interface BoundCodes {
  /** By the canonical of the value set. */
  readonly codes: ReadonlyMap<string, CodeList>
  /** Missing value sets, or ones with unknown codes. */
  readonly unknown: readonly string[]
}

type Listing =
  | { readonly kind: 'list'; readonly list: CodeList; readonly size: number }
  | { readonly kind: 'large'; readonly valueSet: ValueSet }
  | { readonly kind: 'unknown' }

const FRESH_MS = 5_000
const MOST_CODES = 500_000

/** By Project and canonical; the size is the number of codes. */
const listings = new Cache<string, Listing>({
  name: 'bound-codes',
  ttlMs: FRESH_MS,
  types: ['ValueSet', 'CodeSystem'],
  max: MOST_CODES,
  size: (listing) => (listing.kind === 'list' ? listing.size + 1 : 1),
})

/** Looks up the codes of a resource in value sets that are too large to list. */
export async function boundCodes(
  services: Services,
  project: ProjectContext,
  canonicals: readonly string[],
  resource: Resource,
): Promise<BoundCodes> {
  const codes = new Map<string, CodeList>()
  const unknown: string[] = []
  if (canonicals.length === 0) return { codes, unknown }
  // Validation is the same for every member, regardless of read access.
  const reader = systemPrincipal(project, 'project')
  const terminology = openTerminology(services, reader)
  for (const canonical of new Set(canonicals)) {
    const key = `${project.id} ${canonical}`
    const known = listings.get(key)
    const listing = known ?? (await loadListing(terminology, canonical))
    if (known === undefined) listings.set(key, listing)
    const list = await codesFromListing(terminology, listing, resource)
    if (list === undefined) unknown.push(canonical)
    else codes.set(canonical, list)
  }
  return { codes, unknown }
}

async function loadListing(terminology: Terminology, canonical: string): Promise<Listing> {
  const valueSet = await terminology.valueSet(canonical)
  if (valueSet === undefined) return { kind: 'unknown' }
  const needed = Number.POSITIVE_INFINITY
  const wish = { text: undefined, activeOnly: false, allSpellings: true, needed }
  // A terminology limit, such as too many codes, is not an error of the resource.
  const expanding = expandValueSet(evaluation(terminology), valueSet, wish)
  const expanded = await expanding.catch(ignoreClientError)
  if (expanded === undefined) return { kind: 'large', valueSet }
  return { kind: 'list', list: codeList(expanded.codes), size: expanded.codes.length }
}

async function codesFromListing(
  terminology: Terminology,
  listing: Listing,
  resource: Resource,
): Promise<CodeList | undefined> {
  switch (listing.kind) {
    case 'list':
      return listing.list
    case 'large':
      return listFor(terminology, listing.valueSet, resource)
    case 'unknown':
      return undefined
    default:
      return listing satisfies never
  }
}

/** Returns undefined where the value set names an unknown system. */
async function listFor(
  terminology: Terminology,
  valueSet: ValueSet,
  resource: Resource,
): Promise<CodeList | undefined> {
  const found: { system: string; code: string }[] = []
  for (const [system, given] of Map.groupBy(codingsIn(resource), (coding) => coding.system)) {
    const codes = [...new Set(given.map(({ code }) => code))]
    const asked = filterMembers(evaluation(terminology), valueSet, { system, codes })
    const members = await asked.catch(ignoreClientError)
    if (members === undefined) return undefined
    for (const { code } of members) found.push({ system, code })
  }
  const list = codeList(found)
  // Codes without a system were not looked up.
  return { has: (system, code) => system === undefined || list.has(system, code) }
}

function codingsIn(value: unknown): { system: string; code: string }[] {
  if (Array.isArray(value)) return value.flatMap(codingsIn)
  if (!isObject(value)) return []
  const { system, code } = value
  const own = typeof system === 'string' && typeof code === 'string' ? [{ system, code }] : []
  return [...own, ...Object.values(value).flatMap(codingsIn)]
}
