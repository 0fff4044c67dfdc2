/** Executes an operation of a prepared document; returns the response text and its field errors. */
import type { GraphQLError, OperationDefinitionNode } from 'graphql'
import { badRequest, tooLarge } from '../core/errors.ts'
import { parseBody, parseJson } from '../fhir/json.ts'
import { asArray, isObject, isResource, type Resource, toObjects } from '../fhir/resource.ts'
import { WRITE } from '../request/quota.ts'
import type { FhirContext, FhirReply } from '../request/request.ts'
import { createFrom, patchFrom, remove, updateFrom } from '../rest/write.ts'
import { compileOperation, type Prepared } from './document/document.ts'
import { DeferredText } from './execute/deferred-text.ts'
import { withDirectives } from './execute/directives.ts'
import type { Plan } from './execute/plan.ts'
import type { Run } from './execute/run.ts'
import { writeField, writeObject, writeResource } from './execute/write.ts'
import type { Given } from './schema/elements.ts'

/** Maximum characters of a response for FHIR's directives, which run synchronously. */
const MAX_RESHAPED = 8_388_608

export interface Ready {
  readonly run: Run
  readonly prepared: Prepared
  readonly operation: OperationDefinitionNode
  readonly root: Resource | undefined
}

export interface Executed {
  readonly data: string
  readonly errors: readonly GraphQLError[]
}

/** Errors: 413, and aborts of the request. */
export async function execute({ run, prepared, operation, root }: Ready): Promise<Executed> {
  const plan = compileOperation(prepared, operation, run.config.variables)
  const out = new DeferredText()
  if (operation.operation === 'mutation') await mutate(run, out, plan)
  else writeObject(run, out, plan, { value: root, owner: root, path: undefined })
  await run.settle()
  const data = out.toString()
  const { errors } = run
  if (!prepared.hasDirectives) return { data, errors }
  if (data.length > MAX_RESHAPED) throw tooLarge()
  const shaped = await withDirectives(parseJson(data), prepared, operation, run)
  return { data: JSON.stringify(shaped), errors }
}

/** Runs the root fields serially, each with its whole selection. */
async function mutate(run: Run, out: DeferredText, { steps }: Plan): Promise<void> {
  for (const step of steps) {
    out.text += step.open
    const { source } = step
    if (source?.kind !== 'write') {
      writeField(run, out, step, { value: undefined, owner: undefined, path: undefined })
      continue
    }
    const hole = out.hole()
    const path = { parent: undefined, key: step.key }
    try {
      const { given } = run.argumentsFor(step)
      const resource = await ACTIONS[source.action](run, source.type, given)
      writeResource(run, hole, { step, owner: undefined, path }, resource)
      await run.settle()
    } catch (error) {
      run.fail(error, { out: hole, step, path })
    }
  }
  out.text += steps.length === 0 ? '{}' : '}'
}

/** Each returns the stored resource; null for a deletion. Errors: those of the write. */
const ACTIONS = { create, update, patch, delete: del }

async function create(run: Run, type: string, { res }: Given): Promise<Resource> {
  const body = readResourceInput(res, type)
  return stored(await createFrom(await writing(run, 'POST'), type, body, undefined))
}

/** Errors: 400 for another type or id. */
async function update(run: Run, type: string, { id, res }: Given): Promise<Resource> {
  const body = readResourceInput(res, type)
  if (body.id !== id) throw badRequest('Invalid ID', 'id')
  return stored(await updateFrom(await writing(run, 'PUT'), { type, id: String(id), body }))
}

async function patch(run: Run, type: string, { id, patch: operations }: Given): Promise<Resource> {
  const body = toObjects(operations).map(patchOperation)
  return stored(await patchFrom(await writing(run, 'PATCH'), { type, id: String(id), body }))
}

async function del(run: Run, type: string, { id }: Given): Promise<null> {
  await remove(await writing(run, 'DELETE'), type, String(id))
  return null
}

/** HTTP preconditions and preferences do not apply to mutations. Errors: 429. */
async function writing(
  { account, known, config: { interaction: context } }: Run,
  method: string,
): Promise<FhirContext> {
  await account.charge(WRITE)
  known.clear()
  const { request, preferences } = context
  return {
    ...context,
    request: { ...request, method, headers: {}, query: new URLSearchParams() },
    preferences: { ...preferences, returned: 'representation' },
  }
}

function stored({ body }: FhirReply): Resource {
  const resource: unknown = parseJson(String(body))
  if (!isResource(resource)) throw new Error('A write did not return the stored resource')
  return resource
}

function readResourceInput(res: unknown, type: string): Resource {
  const plain: unknown = parseJson(JSON.stringify(res, (_key, value) => value ?? undefined))
  if (!isObject(plain)) throw badRequest('Invalid resource', 'res')
  const { containedJson, resourceType = type, ...rest } = plain
  if (resourceType !== type) throw badRequest('Invalid resourceType', 'resourceType')
  const contained = asArray(containedJson).map((text) => parseBody(String(text)))
  return { resourceType: type, ...rest, ...(contained.length === 0 ? {} : { contained }) }
}

function patchOperation({ op, path, from, value, valueJson }: Record<string, unknown>): object {
  return {
    op,
    path,
    ...(typeof from === 'string' ? { from } : {}),
    ...(typeof value === 'string' ? { value: valueJson === true ? parseBody(value) : value } : {}),
  }
}
