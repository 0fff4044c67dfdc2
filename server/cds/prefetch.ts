/** Resolves the prefetch templates that a client has not, as the caller. https://cds-hooks.hl7.org/2.0/#prefetch-template */
import type { Principal } from '../../shared/access/principal.ts'
import { handle } from '../../shared/api/handle.ts'
import { PREFETCH_TOKEN } from '../../shared/fhir/bot-cds.ts'
import { parseJson } from '../../shared/fhir/json.ts'
import { isObject, parseReference, toObjects } from '../../shared/fhir/resource.ts'
import { readQuery } from '../../shared/request/negotiate.ts'
import type { FhirContext, FhirReply } from '../../shared/request/request.ts'

export type CdsCaller = Omit<FhirContext, 'preferences'>

type Context = Readonly<Record<string, unknown>>

/** Matches of a template without `_count`; with more of them its data would be incomplete. */
const MOST_MATCHES = 200
const MOST_CHARACTERS = 1_048_576
/** A value that may stand in a path or a query. */
const SAFE = /^[A-Za-z0-9._:/|-]{1,256}$/

/**
 * Returns the data of templates by key: null where there is none. A key is missing if its tokens have no value, or its
 * request fails or is incomplete.
 */
export async function resolvePrefetch(
  caller: CdsCaller,
  templates: Readonly<Record<string, string>>,
  context: Context,
): Promise<Readonly<Record<string, unknown>>> {
  const found = await Promise.all(
    Object.entries(templates).map(async ([key, template]) => {
      const query = fillTokens(template, context, caller.principal)
      return [key, query === undefined ? undefined : await resolve(caller, query)] as const
    }),
  )
  return Object.fromEntries(found.filter(([, value]) => value !== undefined))
}

/** Returns undefined if a token has no value, or none that may stand in a request. */
function fillTokens(
  template: string,
  context: Context,
  { profile }: Principal,
): string | undefined {
  const userId = typeof context.userId === 'string' ? context.userId : profile
  const user = parseReference(userId)
  let isWhole = true
  const filled = template.replaceAll(PREFETCH_TOKEN, (_, name?: string, type?: string) => {
    const value = name === undefined ? (user?.type === type ? user?.id : undefined) : context[name]
    const text = typeof value === 'string' || typeof value === 'number' ? String(value) : ''
    if (!SAFE.test(text)) isWhole = false
    return text
  })
  return isWhole ? filled : undefined
}

async function resolve(caller: CdsCaller, target: string): Promise<unknown> {
  const { services, principal, request } = caller
  const [path = '', text = ''] = target.split('?', 2)
  const isSearch = target.includes('?')
  if (!/^[A-Za-z]+(?:\/[A-Za-z0-9.-]{1,64})?$/.test(path)) return undefined
  const query = readQuery(text)
  const isCounted = query.has('_count')
  if (isSearch && !isCounted) query.set('_count', String(MOST_MATCHES))
  const { requestId, traceId, signal } = request
  const reply = await handle(services, principal, {
    method: 'GET',
    path,
    query,
    queryText: query.toString(),
    headers: { accept: 'application/fhir+json' },
    body: undefined,
    requestId,
    traceId,
    ...(signal === undefined ? {} : { signal }),
  })
  return readData(reply, isCounted)
}

function readData({ status, body }: FhirReply, isCounted: boolean): unknown {
  if (status === 404 || status === 410) return null
  if (status !== 200 || typeof body !== 'string' || body.length > MOST_CHARACTERS) return undefined
  const value = parseJson(body)
  if (!isObject(value) || value.resourceType !== 'Bundle' || value.type !== 'searchset') {
    return value
  }
  const { link, ...bundle } = value
  if (toObjects(bundle.entry).length === 0) return null
  const hasMore = toObjects(link).some(({ relation }) => relation === 'next')
  return hasMore && !isCounted ? undefined : bundle
}
