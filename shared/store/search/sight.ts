/** What a Principal sees of a type: the one place that every statement of a search asks. */
import { type Interaction, may, REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { projectKey, type Store } from '../context.ts'
import { REGISTRY_PROJECT } from '../tenants.ts'
import type { Scene, Test } from './row-test.ts'

/** Undefined for what the Principal may not do; `project` is that of the types outside the registry. */
export function sightOf(
  store: Pick<Store, 'keys'>,
  principal: Principal,
  type: string,
  interaction: Interaction,
  project: number = principal.project.number,
  units: Scene['units'] = [],
): Scene | undefined {
  // Who sees a Binary is for its securityContext to say, not for a search.
  if (type === 'Binary' || !may(principal, type, interaction)) return undefined
  const { keys } = store
  const isRegistry = REGISTRY_TYPES.has(type)
  const own: Test = { kind: 'keys', any: [projectKey(keys, type, principal.project.id)] }
  return {
    keys,
    project: isRegistry ? REGISTRY_PROJECT : project,
    type,
    own: principal.project.parameters,
    units,
    visible: isRegistry && !principal.isSuperAdmin ? [own] : [],
    enter: (other) => sightOf(store, principal, other, 'search', project, units),
  }
}
