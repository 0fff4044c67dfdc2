/** Mutations: the writes of REST, their answers the resources. */

import { badRequest } from '../errors.ts'
import { parseBody, parseJson } from '../fhir/json.ts'
import { isObject, isResource, type Resource } from '../fhir/resource.ts'
import { WRITE } from '../request/quota.ts'
import type { FhirReply, Interaction } from '../request/request.ts'
import { createFrom, patchFrom, remove, updateFrom } from '../rest/resources.ts'
import type { Given, GraphqlContext } from './request-state.ts'

export async function create(
  context: GraphqlContext,
  type: string,
  { res }: Given,
): Promise<Resource> {
  const body = bodyOf(res, type)
  return stored(context, await createFrom(await writing(context, 'POST'), type, body, undefined))
}

/** Errors: 400 when the resource is of another type or id. */
export async function update(
  context: GraphqlContext,
  type: string,
  { id, res }: Given,
): Promise<Resource> {
  const body = bodyOf(res, type)
  if (body.id !== id) throw badRequest('Invalid ID', 'id')
  return stored(context, await updateFrom(await writing(context, 'PUT'), type, String(id), body))
}

export async function patch(
  context: GraphqlContext,
  type: string,
  { id, patch: operations }: Given,
): Promise<Resource> {
  const body = (Array.isArray(operations) ? operations.filter(isObject) : []).map(operationOf)
  return stored(context, await patchFrom(await writing(context, 'PATCH'), type, String(id), body))
}

export async function del(context: GraphqlContext, type: string, { id }: Given): Promise<null> {
  await remove(await writing(context, 'DELETE'), type, String(id))
  return null
}

/** Preconditions and preferences of the HTTP request are not those of its mutations. Errors: 429. */
async function writing(
  { interaction, account, loads, required, found }: GraphqlContext,
  method: string,
): Promise<Interaction> {
  await account.charge(WRITE)
  loads.clear()
  required.clear()
  found.clear()
  const { request, preferences } = interaction
  return {
    ...interaction,
    request: { ...request, method, headers: {}, query: new URLSearchParams() },
    preferences: { ...preferences, returned: 'representation' },
  }
}

function stored({ owners }: GraphqlContext, { body }: FhirReply): Resource {
  const resource: unknown = parseJson(String(body))
  if (!isResource(resource)) throw new Error('A write did not answer with what it stored')
  owners.set(resource, resource)
  return resource
}

function bodyOf(res: unknown, type: string): Resource {
  const plain: unknown = parseJson(JSON.stringify(res, (_key, value) => value ?? undefined))
  if (!isObject(plain)) throw badRequest('Invalid resource', 'res')
  const { containedJson, resourceType = type, ...rest } = plain
  if (resourceType !== type) throw badRequest('Invalid resourceType', 'resourceType')
  const texts: readonly unknown[] = Array.isArray(containedJson) ? containedJson : []
  const contained = texts.map((text) => parseBody(String(text)))
  return { resourceType: type, ...rest, ...(contained.length === 0 ? {} : { contained }) }
}

function operationOf({ op, path, from, value, valueJson }: Record<string, unknown>): object {
  return {
    op,
    path,
    ...(typeof from === 'string' ? { from } : {}),
    ...(typeof value === 'string' ? { value: valueJson === true ? parseBody(value) : value } : {}),
  }
}
