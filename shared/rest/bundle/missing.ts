/**
 * Creates what conditional entries of a batch found missing in a few transactions instead of one each.
 * https://hl7.org/fhir/R4/http.html#ccreate
 */
import type { ResponseEntry } from '../../fhir/bundle.ts'
import type { SearchRequest } from '../../query/search-request.ts'
import { type Interaction, through } from '../../request/request.ts'
import type { Repository, Transaction } from '../../store/repository.ts'
import { findMatches } from '../conditional-references.ts'
import { finishWrite } from '../finish-write.ts'
import { type Accepted, acceptResource } from '../interaction.ts'
import { beforeWrite } from '../pre-commit.ts'
import { withAccount } from '../write.ts'
import { type Identity, IdentityLost, rewrite, type Step } from './identities.ts'
import { bodyOf, entryOf, interactionOf } from './run.ts'

/** Nothing fulfils its criteria, and no entry before it is to make that. */
export interface MissingStep extends Step {
  readonly identity: Identity & { readonly condition: SearchRequest }
}

/** So many searches are one statement. */
export const MOST_MISSING = 200

export function isMissing(step: Step): step is MissingStep {
  const { identity, isTwin, entry } = step
  if (identity?.condition === undefined || !identity.isNew || isTwin) return false
  return entry.headers['if-match'] === undefined
}

type Made =
  | { readonly kind: 'made'; readonly step: MissingStep; readonly response: ResponseEntry }
  | { readonly kind: 'invalid'; readonly step: MissingStep; readonly error: unknown }
  /** It could not be made together with the others; alone it may be. */
  | { readonly kind: 'undecided'; readonly step: MissingStep }

/** At most `MOST_MISSING`. Does not reject. */
export async function makeMissing(
  outer: Interaction,
  steps: readonly MissingStep[],
): Promise<readonly Made[]> {
  const valid: Valid[] = []
  const invalid: Made[] = []
  for (const step of steps) {
    try {
      valid.push(await accepted(outer, step))
    } catch (error) {
      invalid.push({ kind: 'invalid', step, error })
    }
  }
  return [...invalid, ...(await madeOf(outer, valid))]
}

async function madeOf(outer: Interaction, valid: readonly Valid[]): Promise<readonly Made[]> {
  try {
    return await makeTogether(outer, valid)
  } catch {
    // One is refused, or another request was faster: each by itself finds out what becomes of it.
    return valid.map(({ step }) => ({ kind: 'undecided', step }))
  }
}

interface Valid extends Accepted {
  readonly step: MissingStep
  readonly interaction: Interaction
}

async function accepted(outer: Interaction, step: MissingStep): Promise<Valid> {
  const interaction = interactionOf(outer, step)
  const { type, id } = step.identity
  const sent = { ...rewrite(bodyOf(step.entry), step.identities), id }
  const body = withAccount(interaction, sent)
  const { resource, warnings } = await acceptResource(interaction, type, body)
  // Here, as nothing is locked yet.
  const next = await beforeWrite(interaction, 'create', resource)
  return { step, interaction, resource: next, warnings }
}

async function makeTogether(
  { services, principal }: Interaction,
  valid: readonly Valid[],
): Promise<readonly Made[]> {
  if (valid.length === 0) return []
  const conditions = valid.map(({ step }) => ({ ...step.identity.condition, sort: [] }))
  const make = async (transaction: Transaction) => {
    const pages = await transaction.searchMany(principal, conditions)
    const areMissing = pages.every(
      (page) => page.status === 'fulfilled' && page.value.versions.length === 0,
    )
    if (!areMissing) throw new Error('Another request has made one of them')
    const pieces = valid.map(
      ({ step, interaction, resource, warnings }) =>
        async (repository: Repository): Promise<Made> => {
          const written = await repository.create(principal, resource, { keepId: true })
          const reply = await finishWrite(through(interaction, repository), written, warnings)
          return { kind: 'made', step, response: entryOf(step, reply) }
        },
    )
    return transaction.together(pieces, (_, error) => error)
  }
  return services.repository.transaction(make, { principal, conditions, oneState: false })
}

// * Races with other requests while a batch runs: a conditional entry that was to create a resource, and finds
// it created, goes on with that one, and so do the entries that refer to it.
// https://hl7.org/fhir/R4/http.html#ccreate

interface Races {
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
