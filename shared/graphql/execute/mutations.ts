/** Mutations: the writes of REST, their answers the resources. */
import { badRequest } from '../../errors.ts'
import { parseBody, parseJson } from '../../fhir/json.ts'
import { isObject, isResource, type Resource } from '../../fhir/resource.ts'
import { WRITE } from '../../request/quota.ts'
import type { FhirReply, Interaction } from '../../request/request.ts'
import { createFrom, patchFrom, remove, updateFrom } from '../../rest/resources.ts'
import type { Given, WriteAction } from '../schema/sources.ts'
import type { Run } from './run.ts'

/** The stored resource; null for a deletion. Errors: those of the write. */
export function write(
  run: Run,
  type: string,
  action: WriteAction,
  given: Given,
): Promise<Resource | null> {
  return ACTIONS[action](run, type, given)
}

const ACTIONS = { create, update, patch, delete: del }

async function create(run: Run, type: string, { res }: Given): Promise<Resource> {
  const body = bodyOf(res, type)
  return stored(await createFrom(await writing(run, 'POST'), type, body, undefined))
}

/** Errors: 400 when the resource is of another type or id. */
async function update(run: Run, type: string, { id, res }: Given): Promise<Resource> {
  const body = bodyOf(res, type)
  if (body.id !== id) throw badRequest('Invalid ID', 'id')
  return stored(await updateFrom(await writing(run, 'PUT'), type, String(id), body))
}

async function patch(run: Run, type: string, { id, patch: operations }: Given): Promise<Resource> {
  const body = (Array.isArray(operations) ? operations.filter(isObject) : []).map(operationOf)
  return stored(await patchFrom(await writing(run, 'PATCH'), type, String(id), body))
}

async function del(run: Run, type: string, { id }: Given): Promise<null> {
  await remove(await writing(run, 'DELETE'), type, String(id))
  return null
}

/** Preconditions and preferences of the HTTP request are not those of its mutations. Errors: 429. */
async function writing(
  { account, known, config: { interaction } }: Run,
  method: string,
): Promise<Interaction> {
  await account.charge(WRITE)
  known.clear()
  const { request, preferences } = interaction
  return {
    ...interaction,
    request: { ...request, method, headers: {}, query: new URLSearchParams() },
    preferences: { ...preferences, returned: 'representation' },
  }
}

function stored({ body }: FhirReply): Resource {
  const resource: unknown = parseJson(String(body))
  if (!isResource(resource)) throw new Error('A write did not answer with what it stored')
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
