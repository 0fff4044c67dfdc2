/** Who signs in as a profile: asked after every deletion of one, so those of a bundle ask together. */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { systemPrincipal } from '../access/principal.ts'
import type { Resource } from '../fhir/resource.ts'
import { searchFor } from './lookups.ts'
import { SYSTEM_PROJECT } from './projects.ts'
import type { Repository } from './repository.ts'
import { parseVersion } from './rows.ts'

type Answers = Promise<ReadonlyMap<string, Resource | undefined>>

interface Turn {
  readonly references: Set<string>
  readonly answers: Answers
}

const turns = new WeakMap<Repository, Turn>()

/** A membership whose profile is the `Type/id`. One statement for all that ask in the same turn. */
export async function membershipOf(
  repository: Repository,
  reference: string,
): Promise<Resource | undefined> {
  const turn = turns.get(repository) ?? begin(repository)
  turn.references.add(reference)
  return (await turn.answers).get(reference)
}

function begin(repository: Repository): Turn {
  const references = new Set<string>()
  const turn = { references, answers: ask(repository, references) }
  turns.set(repository, turn)
  return turn
}

async function ask(repository: Repository, references: ReadonlySet<string>): Answers {
  await nextTurn()
  turns.delete(repository)
  const asked = [...references]
  const requests = asked.map((reference) =>
    searchFor(
      'ProjectMembership',
      [{ code: 'profile', type: 'reference', modifier: undefined, values: [reference] }],
      1,
      [],
    ),
  )
  const results = await repository.searchMany(systemPrincipal(SYSTEM_PROJECT), requests)
  return new Map(
    results.map((result, i) => {
      if (result.status === 'rejected') throw result.reason
      const [version] = result.value.versions
      return [asked[i] ?? '', version && parseVersion(version)]
    }),
  )
}
