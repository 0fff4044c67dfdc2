/** A deletion answers the ProjectMembership of which it has deleted the profile. */
import { typeNumber } from '../../fhir/definitions.ts'
import type { Keys } from '../index/keys.ts'
import { REGISTRY_PROJECT } from '../rows/tenants.ts'

const MEMBERSHIP = 'ProjectMembership'
const PROFILES = new Set(['Patient', 'Practitioner', 'RelatedPerson', 'Bot', 'ClientApplication'])

/** Key that the memberships of this profile hold; undefined for what is no profile. */
export function profileKey(keys: Keys, type: string, id: string): bigint | undefined {
  if (!PROFILES.has(type)) return undefined
  const p = keys.param(REGISTRY_PROJECT, MEMBERSHIP, 'profile')
  return keys.reference(p, keys.target(REGISTRY_PROJECT, `${type}/${id}`))
}

/** The row id of a membership, in SQL, from the key `profile`. */
export const MEMBERSHIP_OF_PROFILE = `(select m.id from resource m where m.project = ${REGISTRY_PROJECT} and m.type = ${typeNumber(MEMBERSHIP)}
        and m.keys @> array[profile] limit 1)`
