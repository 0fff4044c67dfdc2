/** The paths below `/fhir/R4/`: which interaction or operation a request asks for. */
import { customOperation } from '../bots/custom.ts'
import { badStructure, type HttpError, methodNotAllowed, notFound } from '../core/errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import type { Operation, Route } from '../request/request.ts'
import { isLegalId, normalId } from '../store/rows/context.ts'
import { operations } from './operations.ts'

type Kinds = Readonly<Record<string, Route['kind']>>

/** By the last segment: the interaction of each method. */
const SYSTEM: ReadonlyMap<string | undefined, Kinds> = new Map([
  [undefined, { GET: 'system-search', POST: 'bundle' }],
  ['metadata', { GET: 'metadata' }],
  ['_history', { GET: 'system-history' }],
  ['_search', { POST: 'system-search' }],
])
const TYPE: ReadonlyMap<string | undefined, Kinds> = new Map<string | undefined, Kinds>([
  [
    undefined,
    {
      GET: 'search',
      POST: 'create',
      PUT: 'conditional-update',
      PATCH: 'conditional-patch',
      DELETE: 'conditional-delete',
    },
  ],
  ['_search', { POST: 'search-form' }],
  ['_history', { GET: 'type-history' }],
])
const INSTANCE: ReadonlyMap<string | undefined, Kinds> = new Map<string | undefined, Kinds>([
  [undefined, { GET: 'read', PUT: 'update', PATCH: 'patch', DELETE: 'delete' }],
  ['_history', { GET: 'history' }],
])

const named = Map.groupBy(operations, ({ name }) => name)

export function splitPath(path: string): readonly string[] {
  return path.split('/').filter((segment) => segment !== '')
}

/** The path without ids and with few enough values for metrics: `:type/:id/$execute`. */
export function pathShape(segments: readonly string[]): string {
  return segments.slice(0, 4).map(toShape).join('/')
}

function toShape(segment: string): string {
  if (segment.startsWith('$')) return named.has(segment.slice(1)) ? segment : '$operation'
  if (['metadata', '_history', '_search'].includes(segment)) return segment
  return /^[A-Z]/.test(segment) ? ':type' : ':id'
}

/** Errors: 404 unknown path or operation, 400 unknown resource type, 405 with Allow. */
export function findRoute(method: string, path: string): Route {
  const segments = splitPath(path)
  const [type, second, third, fourth] = segments
  const system = segments.length < 2 ? SYSTEM.get(type) : undefined
  if (system !== undefined) return pick(method, system, {})
  if (type === undefined) throw notFound()
  if (type.startsWith('$')) return operationRoute(method, segments, {})
  if (!/^[A-Za-z]+$/.test(type) || type === 'job') throw notFound()
  if (!isResourceType(type)) throw badStructure('Unknown resource type')
  if (second?.startsWith('$')) return operationRoute(method, segments.slice(1), { type })
  const ofType = segments.length < 3 ? TYPE.get(second) : undefined
  if (ofType !== undefined) return pick(method, ofType, { type })
  if (second === undefined || !isLegalId(second)) throw notFound()
  const id = normalId(second)
  if (third?.startsWith('$')) return operationRoute(method, segments.slice(2), { type, id })
  const ofInstance = segments.length < 4 ? INSTANCE.get(third) : undefined
  if (ofInstance !== undefined) return pick(method, ofInstance, { type, id })
  if (third === '_history' && segments.length === 4) {
    return pick(method, { GET: 'vread' }, { type, id, vid: fourth ?? '' })
  }
  const isSearch = segments.length === 3 || (segments.length === 4 && fourth === '_search')
  if (third === undefined || !isSearch || !/^([A-Za-z]+|\*)$/.test(third)) throw notFound()
  if (third !== '*' && !isResourceType(third)) throw badStructure('Unknown resource type')
  const search = fourth === undefined ? 'GET' : 'POST'
  return pick(method, { [search]: 'compartment-search' }, { type, id, target: third })
}

function pick(method: string, kinds: Kinds, target: Readonly<Record<string, string>>): Route {
  const name = method === 'HEAD' ? 'GET' : method
  const kind = Object.hasOwn(kinds, name) ? kinds[name] : undefined
  if (kind === undefined) throw methodNotAllowed(allowed(Object.keys(kinds)))
  // Each table above gives a kind only together with the target that it needs.
  return { kind, ...target } as Route
}

/** Errors: 405 for an operation whose GET has effects. */
export function requireNoEffects(route: Route): void {
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
  [first = '', ...rest]: readonly string[],
  { type, id }: { readonly type?: string; readonly id?: string },
): Route {
  const name = first.slice(1)
  const level = id !== undefined ? 'instance' : type === undefined ? 'system' : 'type'
  const known = named
    .get(name)
    ?.find(({ on }) => on.some((at) => at.level === level && (at.type ?? type) === type))
  const operation = known ?? customOperation(name)
  // A name without a definition returns 404 for every method.
  if (known === undefined && !operation.methods.includes(method)) throw notFound()
  if (!operation.methods.includes(method)) throw notAllowed(operation)
  return { kind: 'operation', operation, type, id, rest: rest.join('/') }
}
