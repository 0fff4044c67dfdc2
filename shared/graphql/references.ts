/** `resource` of a Reference. https://hl7.org/fhir/R4/graphql.html#references */
import { notFound } from '../errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import { isObject, isResource, parseReference, type Resource } from '../fhir/resource.ts'
import { absoluteUrl } from '../request/reply.ts'
import { load, loadRequired } from './context.ts'
import type { Given, GraphqlContext } from './request-state.ts'

/** Null for another type than asked for. Errors: 404, unless it is optional. */
export function targetOf(
  context: GraphqlContext,
  source: unknown,
  { type, optional }: Given,
): Resource | null | Promise<Resource | undefined> {
  const reference = isObject(source) ? source.reference : undefined
  const isWanted = (found: string) => typeof type !== 'string' || type === found
  if (typeof reference === 'string' && reference.startsWith('#')) {
    const resource = contained(context, source, reference.slice(1))
    if (resource !== undefined) return isWanted(resource.resourceType) ? resource : null
  }
  const target = typeof reference === 'string' ? addressOf(context, reference) : undefined
  if (target === undefined || !isResourceType(target.type)) {
    if (optional === true) return null
    throw notFound()
  }
  if (!isWanted(target.type)) return null
  const found = context.found.get(`${target.type}/${target.id}`)
  if (found !== undefined) return found
  const loading = (optional === true ? load : loadRequired)(context, target.type, target.id)
  return inTurn(context, loading)
}

/** What is selected of a resource, in values of a list. */
const SELECTION_WORK = 10

/** Thousands may wait for one resource. */
async function inTurn<T>({ levels }: GraphqlContext, loading: Promise<T>): Promise<T> {
  const resource = await loading
  const turn = levels.pace(SELECTION_WORK)
  if (turn !== undefined) await turn
  return resource
}

function addressOf({ interaction }: GraphqlContext, reference: string) {
  const base = absoluteUrl(interaction.services, '')
  return parseReference(reference.startsWith(base) ? reference.slice(base.length) : reference)
}

function contained({ owners }: GraphqlContext, source: unknown, id: string): Resource | undefined {
  const owner = isObject(source) ? owners.get(source) : undefined
  if (id === '') return owner
  const all: readonly unknown[] = Array.isArray(owner?.contained) ? owner.contained : []
  const found = all.filter(isResource).find((resource) => resource.id === id)
  if (owner !== undefined && found !== undefined) owners.set(found, owner)
  return found
}
