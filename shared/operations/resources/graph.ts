/** `$graph`: a resource and the resources that a GraphDefinition reaches. https://hl7.org/fhir/R4/graphdefinition.html */
import { oldestFirst } from '../../access/guarded/definitions.ts'
import { badRequest, notFound, tooCostly } from '../../core/errors.ts'
import { plainBundle } from '../../fhir/bundle.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import {
  isObject,
  parseReference,
  type Resource,
  referenceTo,
  targetIn,
  toObjects,
} from '../../fhir/resource.ts'
import { compileExpression, type Walk } from '../../fhirpath/extract.ts'
import { readInputs, toInteraction } from '../../request/parameters.ts'
import { absoluteUrl, textReply, versionText } from '../../request/reply.ts'
import type { FhirContext, Operation } from '../../request/request.ts'
import { findCanonical, parseCallerSearch, resolved } from '../../rest/criteria.ts'
import { exactly, findAll } from '../../store/lookups.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import type { Version } from '../../store/rows/version.ts'

const MAX_DEPTH = 5
const MOST_RESULTS = 1000
/** Reads and searches per call. */
const MOST_STEPS = 500

/** Errors: 400 for an unsupported graph or too many steps, 404. */
export const graph: Operation = {
  name: 'graph',
  on: [{ level: 'instance' }],
  standard: 'Resource',
  methods: ['GET', 'POST'],
  onlyReads: true,
  inputs: { graph: 'text!: Name of the GraphDefinition' },
  text: { summary: 'Read a graph of resources', answer: 'Bundle' },
  async run(call) {
    const { services, principal, type = '', id = '' } = call
    const { repository } = services
    const name = readInputs(call).required('graph')
    const start = await repository.read(principal, type, id)
    const named = [exactly('name', name)]
    const all = oldestFirst(await findAll(repository, principal, 'GraphDefinition', named))
    const definition = all.find(({ start }) => start === type)
    if (definition === undefined) {
      if (all[0] === undefined) throw notFound()
      throw badRequest(`GraphDefinition ${name} starts at ${all[0].start}, not at ${type}`)
    }
    const context = toInteraction(call)
    const trail: Trail = {
      interaction: context,
      found: new Map([[`${type}/${id}`, start]]),
      steps: 0,
    }
    await follow(trail, start, definition.link, 1)
    const entries = [...trail.found.values()].map((version) => ({
      fullUrl: absoluteUrl(services, `${version.type}/${version.id}`),
      resource: versionText(context, version),
    }))
    return textReply(200, plainBundle('collection', entries))
  },
}

interface Trail {
  readonly interaction: FhirContext
  readonly found: Map<string, Version>
  steps: number
}

async function follow(trail: Trail, from: Version, links: unknown, depth: number): Promise<void> {
  if (!Array.isArray(links) || links.length === 0) return
  if (depth > MAX_DEPTH) throw tooCostly(`A graph may be ${MAX_DEPTH} links deep`)
  const source = parseVersion(from)
  for (const link of links.filter(isObject)) {
    for (const target of toObjects(link.target)) {
      trail.steps += 1
      if (trail.steps > MOST_STEPS) throw tooCostly('The graph has too many links to follow')
      const { type, params } = target
      if (typeof type !== 'string' || !isResourceType(type)) throw badRequest('Unknown target type')
      const reached =
        typeof link.path === 'string'
          ? [
              ...(await referenced(trail, source, link.path, type)),
              ...(await canonicals(trail, source, link.path, type)),
            ]
          : await searched(trail, source, type, params)
      for (const version of reached) {
        const name = `${version.type}/${version.id}`
        if (trail.found.has(name)) continue
        trail.found.set(name, version)
        if (trail.found.size > MOST_RESULTS) {
          throw tooCostly(`A graph may reach ${MOST_RESULTS} resources`)
        }
        await follow(trail, version, target.link, depth + 1)
      }
    }
  }
}

async function referenced(
  { interaction: context }: Trail,
  source: Resource,
  path: string,
  type: string,
): Promise<readonly Version[]> {
  const found = new Map<string, { readonly type: string; readonly id: string }>()
  for (const walk of compileWalks(source.resourceType, path, collectReferences)) walk(source, found)
  const wanted = [...found.values()].filter((reference) => reference.type === type)
  if (wanted.length === 0) return []
  const { services, principal } = context
  const versions = await services.repository.readMany(principal, wanted)
  return versions.filter((version) => version !== undefined)
}

async function canonicals(
  trail: Trail,
  source: Resource,
  path: string,
  type: string,
): Promise<readonly Version[]> {
  const named = new Set<string>()
  const collect: Walk<Set<string>> = (value, into) => {
    if (typeof value === 'string' && parseReference(value) === undefined) into.add(value)
  }
  for (const walk of compileWalks(source.resourceType, path, collect)) walk(source, named)
  const found: Version[] = []
  for (const canonical of named) {
    trail.steps += 1
    if (trail.steps > MOST_STEPS) throw tooCostly('The graph has too many links to follow')
    const resource = await findCanonical(trail.interaction, type, canonical)
    if (resource?.id === undefined) continue
    const { services, principal } = trail.interaction
    found.push(await services.repository.read(principal, type, resource.id))
  }
  return found
}

type References = Map<string, { readonly type: string; readonly id: string }>

const collectReferences: Walk<References> = (value, found) => {
  const reference = targetIn(value)
  if (reference !== undefined) found.set(`${reference.type}/${reference.id}`, reference)
}

function compileWalks<Sink>(
  type: string,
  path: string,
  collect: Walk<Sink>,
): readonly Walk<Sink>[] {
  const expression = path.startsWith(`${type}.`) ? path : `${type}.${path}`
  try {
    return compileExpression(type, expression).map((leg) => leg.bind(collect))
  } catch {
    throw badRequest(`The path ${path.slice(0, 200)} cannot be followed from ${type}`)
  }
}

/** `params` is a search in which `{ref}` is the source. */
async function searched(
  { interaction: context, found }: Trail,
  source: Resource,
  type: string,
  params: unknown,
): Promise<readonly Version[]> {
  if (typeof params !== 'string' || !params.includes('{ref}')) {
    throw badRequest('A link needs a path, or params with {ref}')
  }
  const { services, principal } = context
  const query = new URLSearchParams(params.replaceAll('{ref}', referenceTo(source)))
  const request = await resolved(context, parseCallerSearch(context, type, query, 'strict'))
  const count = MOST_RESULTS + 1 - found.size
  const { versions } = await services.repository.search(principal, { ...request, count })
  return versions
}
