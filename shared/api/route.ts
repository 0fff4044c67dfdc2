/** Method + path → what answers it. https://hl7.org/fhir/R4/http.html#summary */

import { customOperation } from '../bots/custom.ts'
import { badStructure, type HttpError, methodNotAllowed, notFound } from '../errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import type { Operation, Route } from '../request/operation.ts'
import { isLegalId, normalId } from '../store/rows/context.ts'
import { operations } from './operations.ts'

/** Errors: 404 unknown path or operation, 400 unknown resource type, 405 with Allow. */
export function findRoute(method: string, path: string): Route {
  const segments = path.split('/').filter((segment) => segment !== '')
  const [first, second, third, fourth] = segments
  if (first === undefined) return pick(method, { GET: 'system-search', POST: 'bundle' }, {})
  if (first.startsWith('$')) return operationRoute(method, segments, {})
  if (segments.length === 1 && first === 'metadata') return pick(method, { GET: 'metadata' }, {})
  if (segments.length === 1 && first === '_history') {
    return pick(method, { GET: 'system-history' }, {})
  }
  if (segments.length === 1 && first === '_search') {
    return pick(method, { POST: 'system-search' }, {})
  }
  if (!/^[A-Za-z]+$/.test(first) || first === 'job') throw notFound()
  if (!isResourceType(first)) throw badStructure('Unknown resource type')
  const type = first
  if (second === undefined) return pick(method, TYPE_ROUTES, { type })
  if (second.startsWith('$')) return operationRoute(method, segments.slice(1), { type })
  if (segments.length === 2 && second === '_search') {
    return pick(method, { POST: 'search-form' }, { type })
  }
  if (segments.length === 2 && second === '_history') {
    return pick(method, { GET: 'type-history' }, { type })
  }
  if (!isLegalId(second)) throw notFound()
  const id = normalId(second)
  if (third === undefined) return pick(method, INSTANCE_ROUTES, { type, id })
  if (third.startsWith('$')) return operationRoute(method, segments.slice(2), { type, id })
  if (third === '_history' && segments.length === 3) {
    return pick(method, { GET: 'history' }, { type, id })
  }
  if (third === '_history' && segments.length === 4) {
    return pick(method, { GET: 'vread' }, { type, id, vid: fourth ?? '' })
  }
  const isSearch = segments.length === 3 || (segments.length === 4 && fourth === '_search')
  if (!isSearch || !/^([A-Za-z]+|\*)$/.test(third)) throw notFound()
  if (third !== '*' && !isResourceType(third)) throw badStructure('Unknown resource type')
  const search = fourth === undefined ? 'GET' : 'POST'
  return pick(method, { [search]: 'compartment-search' }, { type, id, target: third })
}

const TYPE_ROUTES = {
  GET: 'search',
  POST: 'create',
  PUT: 'conditional-update',
  PATCH: 'conditional-patch',
  DELETE: 'conditional-delete',
} as const

const INSTANCE_ROUTES = { GET: 'read', PUT: 'update', PATCH: 'patch', DELETE: 'delete' } as const

function pick(
  method: string,
  kinds: Readonly<Record<string, Route['kind']>>,
  target: Readonly<Record<string, string>>,
): Route {
  const kind = kinds[method === 'HEAD' ? 'GET' : method]
  if (kind === undefined || !Object.hasOwn(kinds, method === 'HEAD' ? 'GET' : method)) {
    throw methodNotAllowed(allowed(Object.keys(kinds)))
  }
  // Each table above gives a kind only together with the target that it needs.
  return { kind, ...target } as Route
}

/** Errors: 405 for what GET begins and HEAD must not. */
export function checkHead(route: Route): void {
  if (route.kind === 'operation' && route.operation.acts) throw notAllowed(route.operation)
}

function notAllowed({ methods, acts }: Operation): HttpError {
  return methodNotAllowed(acts ? methods.join(', ') : allowed(methods))
}

function allowed(methods: readonly string[]): string {
  const all = methods.includes('GET') ? ['HEAD', ...methods] : methods
  return [...all].sort().join(', ')
}

function operationRoute(
  method: string,
  segments: readonly string[],
  target: { readonly type?: string; readonly id?: string },
): Route {
  const name = segments[0]?.slice(1) ?? ''
  const level = target.id !== undefined ? 'instance' : target.type === undefined ? 'system' : 'type'
  const known = operations.find(
    (candidate) =>
      candidate.name === name &&
      candidate.on.some((on) => on.level === level && (on.type ?? target.type) === target.type),
  )
  const operation = known ?? customOperation(name)
  // A name that nobody has defined is not found, whatever the method.
  if (known === undefined && !operation.methods.includes(method)) throw notFound()
  if (!operation.methods.includes(method)) throw notAllowed(operation)
  const rest = segments.slice(1).join('/')
  return { kind: 'operation', operation, type: target.type, id: target.id, rest }
}
