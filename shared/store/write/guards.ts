/**
 * The one door for what a write of a type has to keep to besides its policy, whatever path it takes: the rule that a
 * feature has registered for the type. The service's own work (no membership) is trusted.
 */
import { hiddenFields, keep } from '../../access/fields/fields.ts'
import { guardedChanges, hasAllRights } from '../../access/guarded/elements.ts'
import { grantsFor } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { refused } from '../../errors.ts'
import type { Attempt } from '../rows/context.ts'
import type { Ruling } from '../rulings/rows.ts'

/** `ruling` is that of an update. Errors: 400, 403. */
export async function checkAttempt(
  attempt: Omit<Attempt, 'meant' | 'isNamed'>,
  ruling?: Ruling,
): Promise<void> {
  const { store, principal, interaction, sent, kept } = attempt
  const { resourceType: type } = sent
  const rule = store.rules.get(type)
  if (rule?.check === undefined || principal.membershipId === undefined) return
  const isNamed =
    interaction === 'create'
      ? (grantsFor(principal, type, 'create')?.some((grant) => grant.isNamed) ?? false)
      : ruling !== undefined && ruling !== 'all' && ruling.isNamed
  const unseen = hiddenFields(principal, type).filter((name) => name in sent)
  await rule.check({ ...attempt, meant: keep(kept, sent, unseen), isNamed })
}

/**
 * Checks the guarded elements (access/guarded/elements.ts) that a write changes; answers their paths. `isAuthors`:
 * the author of the resource may change them. Errors: 403.
 */
export function checkGuarded(
  { principal, before, meant, isNamed }: Attempt,
  isAuthors = false,
): readonly string[] {
  const { resourceType: type } = meant
  const changes = guardedChanges(before, meant)
  const [path] = changes
  const author = before?.meta?.author?.reference
  const isOwn = isAuthors && (before === undefined || author === principal.profile)
  if (path !== undefined && !principal.isProjectAdmin && !isNamed && !isOwn) {
    const reason = `is for project administrators, and for policies with an entry for ${type}`
    throw refused(`${type}.${path} ${reason}`, `${type}.${path}`)
  }
  if (changes.includes('identityProvider')) requireProviderRight(principal, type)
  return changes
}

/** A provider speaks for every member, so its author lacks no right. Errors: 403. */
export function requireProviderRight(principal: Principal, type: string): void {
  if (hasAllRights(principal)) return
  const reason = 'An identity provider is set up by administrators alone'
  throw refused(reason, `${type}.identityProvider`)
}
