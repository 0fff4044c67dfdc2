/**
 * What other requests make while a batch runs: a conditional entry that was to make a resource, and finds
 * it made, goes on with that one, and so do the entries that refer to it.
 * https://hl7.org/fhir/R4/http.html#ccreate
 */
import { type Identity, IdentityLost, type Step } from './bundle-identities.ts'
import { isMissing, type MissingStep } from './bundle-missing.ts'
import { rewrite } from './bundle-references.ts'
import { findMatches } from './conditional-references.ts'
import type { Interaction } from './interaction.ts'

export interface Races {
  /** Its links have been looked up. */
  began(step: Step): void
  /** Carries out a step as it is by now; once more when it loses what it was to make. */
  run<T>(step: Step, carryOut: (current: Step) => Promise<T>): Promise<T>
  /** Looks once more for what these were to make: one statement. */
  lookAgain(steps: readonly MissingStep[]): Promise<void>
}

export function createRaces(interaction: Interaction): Races {
  const found = new Map<Identity, Identity>()
  const begun = new Set<Step>()

  const current = (step: Step): Step => {
    const { identity } = step
    return { ...step, identity: identity && (found.get(identity) ?? identity) }
  }

  /** What refers to it may be stored already. */
  const isReferredTo = ({ type, id }: Identity) =>
    [...begun].some(({ entry, identities }) =>
      JSON.stringify(rewrite(entry.resource ?? {}, identities)).includes(`${type}/${id}`),
    )

  const lookAgain = async (steps: readonly MissingStep[]) => {
    const asked = new Map(steps.map((step) => [keyOf(step), step.identity.condition]))
    const matches = await findMatches(interaction, asked)
    for (const step of steps) {
      const { identity, identities } = step
      const page = matches.get(keyOf(step))
      const [match, second] = page?.status === 'fulfilled' ? page.value.versions : []
      if (match === undefined || second !== undefined || isReferredTo(identity)) continue
      found.set(identity, { ...identity, id: match.id, match, isNew: false })
      for (const [link, target] of identities) {
        if (target === `${identity.type}/${identity.id}`) {
          identities.set(link, `${match.type}/${match.id}`)
        }
      }
    }
  }

  return {
    began: (step) => void begun.add(step),
    lookAgain,
    async run(step, carryOut) {
      begun.add(step)
      try {
        return await carryOut(current(step))
      } catch (error) {
        if (!(error instanceof IdentityLost) || !isMissing(step)) throw error
        await lookAgain([step])
        return await carryOut(current(step))
      }
    },
  }
}

function keyOf({ entry }: MissingStep): string {
  return String(entry.index)
}
