/** The tests for rows that a Principal sees of a type: every statement of a search takes them from here. */
import type { Interaction } from '../../../access/grant.ts'
import { grantsFor, may, REGISTRY_TYPES } from '../../../access/policy.ts'
import type { Principal } from '../../../access/principal.ts'
import { hiddenParameter } from '../../../errors.ts'
import { projectKey, type Store } from '../../rows/context.ts'
import { REGISTRY_PROJECT } from '../../rows/tenants.ts'
import { hidesAny, placeIn, visibleTests } from './grant-tests.ts'
import type { Scene } from './row-test.ts'
import type { Test } from './test.ts'

interface VisibleScope {
  readonly interaction: Interaction
  readonly project?: number | undefined
  readonly units?: Scene['units'] | undefined
  readonly codes?: readonly string[] | undefined
  readonly from?: string | undefined
}

/**
 * Undefined for what the Principal may not do; `project` is that of the types outside the registry.
 * `codes` are the parameters that rows are found by. Errors: 403 for one whose element is hidden
 * in every row. `from`: the type that a reference leads here from.
 */
export function visibleRows(
  store: Pick<Store, 'keys'>,
  principal: Principal,
  type: string,
  { interaction, project = principal.project.number, units = [], codes = [], from }: VisibleScope,
): Scene | undefined {
  // The securityContext of a Binary decides who sees it, not a search.
  if (type === 'Binary' || !may(principal, type, interaction)) return undefined
  const { keys } = store
  const isRegistry = REGISTRY_TYPES.has(type)
  const own: Test = { kind: 'keys', any: [projectKey(keys, type, principal.project.id)] }
  const place = placeIn(keys, principal, type, isRegistry ? REGISTRY_PROJECT : project)
  // A member's User may be the platform's: its address shows in the membership, too.
  const isMember = type === 'User' && from === 'ProjectMembership'
  const isLimited = isRegistry && !principal.isSuperAdmin && !isMember
  const grants = grantsFor(principal, type, interaction)
  const parameters = principal.project.parameters
  const granted = grants === undefined ? [] : visibleTests(place, grants, codes, parameters)
  if (granted === undefined) {
    const hidden = codes.find((code) =>
      grants?.every((grant) => hidesAny(grant, type, [code], parameters)),
    )
    throw hiddenParameter(hidden ?? codes[0])
  }
  return {
    ...place,
    own: parameters,
    units,
    visible: [...(isLimited ? [own] : []), ...granted],
    enter: (other, inner) =>
      visibleRows(store, principal, other, {
        interaction: 'search',
        project,
        units,
        codes: inner,
        from: type,
      }),
  }
}

interface HiddenScope {
  readonly interaction: Interaction
  readonly project: number
  readonly codes: readonly string[]
}

/** True when one of the parameters reads what is hidden in every row that may be seen. */
export function isHidden(
  { keys }: Pick<Store, 'keys'>,
  principal: Principal,
  type: string,
  { interaction, project, codes }: HiddenScope,
): boolean {
  const grants = grantsFor(principal, type, interaction)
  if (grants === undefined || grants.length === 0) return false
  const parameters = principal.project.parameters
  return (
    visibleTests(placeIn(keys, principal, type, project), grants, codes, parameters) === undefined
  )
}
