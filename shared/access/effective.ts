/** The effective policy of a Principal as AccessPolicy entries: expanded, after scopes and admin rights. */
import { type Grant, INTERACTIONS, type Interaction } from './grant.ts'
import { may, REGISTRY_TYPES } from './policy.ts'
import type { Principal } from './principal.ts'

export function effectiveEntries(principal: Principal): readonly object[] {
  const registry = [...REGISTRY_TYPES].flatMap((resourceType) => {
    const allowed = INTERACTIONS.filter((item) => may(principal, resourceType, item))
    return allowed.length === 0 ? [] : [{ resourceType, ...interactionsOf(allowed) }]
  })
  const grants = principal.rules?.grants.filter(({ type }) => !REGISTRY_TYPES.has(type))
  return [...(grants?.map(entryOf) ?? [{ resourceType: '*' }]), ...registry]
}

export function entryOf({ type, interactions, said, hidden, readonly }: Grant): object {
  const criteria = said.filter((text) => text.startsWith(`${type}?`))
  return {
    resourceType: type,
    ...(criteria.length === 0 ? {} : { criteria: criteria.join('&') }),
    ...interactionsOf(INTERACTIONS.filter((item) => interactions.has(item))),
    ...(hidden.length === 0 ? {} : { hiddenFields: hidden }),
    ...(readonly.length === 0 ? {} : { readonlyFields: readonly }),
  }
}

function interactionsOf(interaction: readonly Interaction[]) {
  return interaction.length === INTERACTIONS.length ? {} : { interaction }
}
