/** Resources of linked Projects: read where the own Project has none, never written. */

import type { Principal } from '../access/principal.ts'
import { linkedProjects } from '../access/project-context.ts'
import { forbidden, HttpError } from '../errors.ts'
import type { Repository } from './repository.ts'

/** A Repository whose reads go on in linked Projects, as far as those share the type. */
export function withLinked(own: Repository): Repository {
  return {
    ...own,
    read: (principal, type, id) =>
      readLinked(principal, type, (reader) => own.read(reader, type, id)),
    readMany: (principal, references) => readManyLinked(own, principal, references),
    readVersion: (principal, type, id, ver) =>
      readLinked(principal, type, (reader) => own.readVersion(reader, type, id, ver)),
    history: (principal, type, id, request) =>
      readLinked(principal, type, (reader) => own.history(reader, type, id, request)),
    planCreate: async (principal, resource, plans) =>
      readersIn(principal, resource.resourceType).length === 0 &&
      own.planCreate(principal, resource, plans),
    async update(principal, resource, options) {
      const { resourceType, id = '' } = resource
      await requireOwn(own, principal, resourceType, id)
      return own.update(principal, resource, options)
    },
    async patch(principal, type, id, change, options) {
      await requireOwn(own, principal, type, id)
      return own.patch(principal, type, id, change, options)
    },
    async delete(principal, type, id, options) {
      await requireOwn(own, principal, type, id)
      return own.delete(principal, type, id, options)
    },
  }
}

/** Errors: those of the own Project, when no other has it. */
async function readLinked<T>(
  principal: Principal,
  type: string,
  read: (reader: Principal) => Promise<T>,
): Promise<T> {
  const readers = readersIn(principal, type)
  if (readers.length === 0) return read(principal)
  try {
    return await read(principal)
  } catch (error) {
    if (!isUnknown(error)) throw error
    for (const reader of readers) {
      const found = await read(reader).catch(orUndefined)
      if (found !== undefined) return found
    }
    throw error
  }
}

/** Errors: 403 for what only a linked Project has. */
async function requireOwn(
  own: Repository,
  principal: Principal,
  type: string,
  id: string,
): Promise<void> {
  const readers = readersIn(principal, type)
  if (readers.length === 0) return
  const [mine] = await own.readMany(principal, [{ type, id }])
  if (mine !== undefined) return
  for (const reader of readers) {
    const [theirs] = await own.readMany(reader, [{ type, id }])
    if (theirs !== undefined) throw forbidden()
  }
}

/** One statement, and one more for each linked Project while something is missing. */
async function readManyLinked(
  own: Repository,
  principal: Principal,
  references: Parameters<Repository['readMany']>[1],
): ReturnType<Repository['readMany']> {
  const found = [...(await own.readMany(principal, references))]
  for (const { number } of principal.project.linked ?? []) {
    const missing = references.flatMap((reference, place) => {
      const readers = found[place] === undefined ? readersIn(principal, reference.type) : []
      const reader = readers.find(({ project }) => project.number === number)
      return reader === undefined ? [] : [{ reference, place, reader }]
    })
    const [first] = missing
    if (first === undefined) continue
    const asked = missing.map(({ reference }) => reference)
    const more = await own.readMany(first.reader, asked)
    for (const [i, { place }] of missing.entries()) found[place] = more[i]
  }
  return found
}

/** The Principal as a reader of those linked Projects that share a type. */
function readersIn(principal: Principal, type: string): readonly Principal[] {
  return linkedProjects(principal, type).map(({ id, number, units }) => ({
    ...principal,
    isProjectAdmin: false,
    // Its rows know nothing of the search parameters of the Principal's own Project.
    project: { ...principal.project, id, number, units, linked: [], parameters: undefined },
  }))
}

function isUnknown(error: unknown): boolean {
  return error instanceof HttpError && error.status === 404
}

function orUndefined(error: unknown): undefined {
  if (isUnknown(error) || (error instanceof HttpError && error.status === 410)) return undefined
  throw error
}
