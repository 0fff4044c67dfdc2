/** Write rules of definitions with a url (`url` in access/guarded/elements.ts). */
import { definesForOthers, definingAuthor } from '../access/guarded/definitions.ts'
import { GUARDS } from '../access/guarded/elements.ts'
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { businessRule, forbiddenByPlatform } from '../core/errors.ts'
import { publishedStructure } from '../fhir/published.ts'
import type { Resource } from '../fhir/resource.ts'
import { coreCodeSystem, coreConceptMap, coreValueSet } from '../fhir/terminology.ts'
import { escapeValue } from '../search/language/values.ts'
import { search } from '../search/page.ts'
import { equals, searchFor } from '../store/lookups.ts'
import type { StoreContext, WriteAttempt, WriteRule } from '../store/rows/context.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { mayWriteGuarded, readStored } from '../store/write/authorize.ts'

/** Limit per url and plain member, as resolving a url reads all of them. */
const MOST_OF_A_MEMBER = 20

const PUBLISHED: Readonly<Record<string, (url: string) => unknown>> = {
  CodeSystem: coreCodeSystem,
  ConceptMap: coreConceptMap,
  StructureDefinition: publishedStructure,
  ValueSet: coreValueSet,
}

export const definitionRules: readonly WriteRule[] = Object.entries(GUARDS)
  .filter(([, { by }]) => by === 'url')
  .map(([type]) => ({
    type,
    check: checkDefinition,
    resolveAuthor: (principal) => definingAuthor(principal, type),
    async checkDeletion(store, principal, id) {
      if (mayWriteGuarded(principal, type, 'delete')) return
      const stored = await readStored(store, principal, type, id)
      if (stored !== undefined) requireOwn(principal, stored)
    },
  }))

/** Checks the write of a plain member. Errors: 403, 422 for too many definitions of one url. */
async function checkDefinition({ store, principal, id, before, meant, isNamed }: WriteAttempt) {
  const { resourceType: type } = meant
  if (isNamed || definesForOthers(principal, type)) return
  if (before !== undefined) requireOwn(principal, before)
  const { url } = meant
  if (typeof url === 'string' && url !== before?.url) {
    await requireFree(store, principal, { type, id, url })
  }
}

/** Errors: 403 for a definition whose current version has another author. */
function requireOwn({ profile }: Principal, { resourceType: type, meta }: Resource): void {
  if (meta?.author?.reference === profile) return
  throw forbiddenByPlatform(`A ${type} of another author ${forOthers(type)}`, type)
}

/** Errors: 403 for a url of another author, a linked Project, a default profile or the standard; 422. */
async function requireFree(
  store: StoreContext,
  principal: Principal,
  { type, id, url }: { readonly type: string; readonly id: string; readonly url: string },
): Promise<void> {
  const inUse = () => forbiddenByPlatform(`The url is in use: it ${forOthers(type)}`, `${type}.url`)
  const defaults = [...(principal.project.defaultProfiles?.values() ?? [])].flat()
  if (PUBLISHED[type]?.(url) !== undefined || defaults.includes(url)) throw inUse()
  // Includes definitions hidden from the member.
  const service = systemPrincipal(principal.project, 'project')
  const condition = equals('url', 'uri', escapeValue(url))
  const asked = searchFor(type, [condition], MOST_OF_A_MEMBER + 1, [])
  const { versions } = await search(store, service, asked)
  const found = versions.filter((version) => version.id !== id).map(parseVersion)
  if (found.some(({ meta }) => meta?.author?.reference !== principal.profile)) throw inUse()
  if (found.length >= MOST_OF_A_MEMBER) {
    const most = `A member has at most ${MOST_OF_A_MEMBER} definitions of one url`
    throw businessRule(most, `${type}.url`)
  }
}

function forOthers(type: string): string {
  return `is for project administrators, and for policies with an entry for ${type}`
}
