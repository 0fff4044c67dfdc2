/** `resource` of a Reference. https://hl7.org/fhir/R4/graphql.html#references */
import { notFound } from '../../errors.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import { isObject, isResource, parseReference, type Resource } from '../../fhir/resource.ts'
import { absoluteUrl } from '../interaction.ts'
import type { Given } from './arguments.ts'
import { type GraphqlContext, load } from './context.ts'

/** Null for another type than asked for. Errors: 404, unless it is optional. */
export async function targetOf(
  context: GraphqlContext,
  reference: unknown,
  { type, optional }: Given,
): Promise<Resource | null> {
  const found = isObject(reference) ? await resolve(context, reference, type) : undefined
  if (found === 'other') return null
  if (found !== undefined) return found
  if (optional === true) return null
  throw notFound()
}

async function resolve(
  context: GraphqlContext,
  source: Record<string, unknown>,
  type: unknown,
): Promise<Resource | 'other' | undefined> {
  const { reference } = source
  if (typeof reference !== 'string') return undefined
  const wanted = typeof type === 'string' ? type : undefined
  const isWanted = (found: string) => wanted === undefined || wanted === found
  if (reference.startsWith('#')) {
    const resource = contained(context, source, reference.slice(1))
    if (resource === undefined) return undefined
    return isWanted(resource.resourceType) ? resource : 'other'
  }
  const base = absoluteUrl(context.interaction.services, '')
  const local = reference.startsWith(base) ? reference.slice(base.length) : reference
  const target = parseReference(local)
  if (target === undefined || !isResourceType(target.type)) return undefined
  return isWanted(target.type) ? load(context, target.type, target.id) : 'other'
}

function contained({ owners }: GraphqlContext, source: object, id: string): Resource | undefined {
  const owner = owners.get(source)
  if (id === '') return owner
  const all: readonly unknown[] = Array.isArray(owner?.contained) ? owner.contained : []
  const found = all.filter(isResource).find((resource) => resource.id === id)
  if (owner !== undefined && found !== undefined) owners.set(found, owner)
  return found
}
