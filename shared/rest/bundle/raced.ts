/**
 * Races with other requests while a batch runs: a conditional entry that was to create a resource, and finds
 * it created, goes on with that one, and so do the entries that refer to it.
 * https://hl7.org/fhir/R4/http.html#ccreate
 */

import type { Interaction } from '../../request/request.ts'
import { findMatches } from '../conditional-references.ts'
import { type Identity, IdentityLost, type Step } from './identities.ts'
import { isMissing, type MissingStep } from './missing.ts'
import { rewrite } from './references.ts'

export interface Races {
  /** Its links have been looked up. */
  began(step: Step): void
  /** Carries out a step as it is by now; once more when it loses what it was to make. */
  run<T>(step: Step, carryOut: (current: Step) => Promise<T>): Promise<T>
  /** Looks once more for what these were to make: one statement. */
  lookAgain(steps: readonly MissingStep[]): Promise<void>
}

/** A reference to a resource of this server, wherever it stands. */
const TARGET = /[A-Z][A-Za-z]+\/[A-Za-z0-9\-.]{1,64}/g

export function createRaces(interaction: Interaction): Races {
  const found = new Map<Identity, Identity>()
  /** Steps whose links nobody has asked about yet, and what the others refer to. */
  const started: Step[] = []
  const used = new Set<string>()

  const current = (step: Step): Step => {
    const { identity } = step
    return { ...step, identity: identity && (found.get(identity) ?? identity) }
  }

  /** True when an entry refers to it, which may be stored already. */
  const isReferredTo = (target: string) => {
    for (const { entry, identities } of started.splice(0)) {
      const text = JSON.stringify(rewrite(entry.resource ?? {}, identities))
      for (const [reference] of text.matchAll(TARGET)) used.add(reference)
    }
    return used.has(target)
  }

  const lookAgain = async (steps: readonly MissingStep[]) => {
    const asked = new Map(steps.map((step) => [keyOf(step), step.identity.condition]))
    const matches = await findMatches(interaction, asked)
    const moved = new Map<string, string>()
    for (const step of steps) {
      const { identity } = step
      const page = matches.get(keyOf(step))
      const [match, second] = page?.status === 'fulfilled' ? page.value.versions : []
      const target = targetOf(identity)
      if (match === undefined || second !== undefined || isReferredTo(target)) continue
      found.set(identity, { ...identity, id: match.id, match, isNew: false })
      moved.set(target, targetOf(match))
    }
    const [{ identities } = { identities: new Map() }] = steps
    for (const [link, target] of identities) {
      const to = moved.get(target)
      if (to !== undefined) identities.set(link, to)
    }
  }

  return {
    began: (step) => void started.push(step),
    lookAgain,
    async run(step, carryOut) {
      started.push(step)
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

function targetOf({ type, id }: Pick<Identity, 'type' | 'id'>): string {
  return `${type}/${id}`
}

function keyOf({ entry }: MissingStep): string {
  return String(entry.index)
}
