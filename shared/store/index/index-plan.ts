/** Index plan of a resource type: the compiled walks of all parameters, grouped by root property. */
import { Cache, memoFor } from '../../core/cache.ts'
import { HttpError } from '../../core/errors.ts'
import {
  COMPARTMENTS,
  compartmentParams,
  isResourceType,
  mainDate,
  searchParameters,
  storedParameters,
  typeElements,
} from '../../fhir/definitions.ts'
import type {
  ElementDefinition,
  OwnParameter,
  OwnParameters,
  SearchParameter,
} from '../../fhir/definitions-data.ts'
import { isSameValue } from '../../fhir/json.ts'
import {
  isObject,
  type Meta,
  normalReference,
  type Resource,
  toObjects,
} from '../../fhir/resource.ts'
import { extractTarget } from '../../fhir/values.ts'
import { compileTenantNodes } from '../../fhirpath/custom.ts'
import { compileExpression, type Leg, type Walk } from '../../fhirpath/extract.ts'
import { nodeValues } from '../../fhirpath/path.ts'
import { isReadable } from '../../search/language/custom-parameters.ts'
import { planComposite } from './composite-plan.ts'
import type { Derivation } from './derivation.ts'
import type { PlannedParameter, PlannedType } from './keys.ts'

export interface IndexPlan extends PlannedType {
  readonly roots: ReadonlyMap<string, readonly Walk<Derivation>[]>
  /** Walks that also yield a value for an absent element (`deceased` is false). */
  readonly whole: readonly Walk<Derivation>[]
  /** Elements with index rows; ANY_ELEMENT when unknown. */
  readonly elements: ReadonlySet<string>
  readonly sides: ReadonlySet<string>
  /** In the order of COMPARTMENTS: walks that collect `Type/id`. */
  readonly compartments: readonly (readonly Walk<Set<string>>[])[]
}

/** Undefined for parameters without rows: columns, unions, unknown ones. */
export function plannedParameter(
  type: string,
  code: string,
  own: OwnParameters | undefined,
): PlannedParameter | undefined {
  return getIndexPlan(type, own).parameters.find((parameter) => parameter.code === code)
}

export function isCanonicalParameter(
  type: string,
  code: string,
  own: OwnParameters | undefined,
): boolean {
  const types = plannedParameter(type, code, own)?.types ?? []
  return types.includes('canonical') || types.includes('uri')
}

/** Compiled on first use of the type. Throws for an unknown type. */
export function getIndexPlan(type: string, own?: OwnParameters, only?: ParameterSubset): IndexPlan {
  if (only !== undefined) return partialPlan(type, own, only)
  const used = own?.types.has(type) ? own : undefined
  return plans(used ?? STANDARD, type, () => {
    if (!isResourceType(type)) throw new Error(`No resource type "${type}"`)
    return makePlan(type, used)
  })
}

const STANDARD = {}
const plans = memoFor<object, IndexPlan>()

/** The parameters to derive, as stored; `_compartment` stands for all that lead to one. */
export interface ParameterSubset {
  readonly stamp: string
  readonly codes: ReadonlySet<string>
}

const MAX_PARTS = 1000
const parts = new Cache<string, IndexPlan>({ name: 'partial-index-plans', max: MAX_PARTS })

function partialPlan(
  type: string,
  own: OwnParameters | undefined,
  only: ParameterSubset,
): IndexPlan {
  const name = `${type}|${own?.stamp ?? ''}|${only.stamp}`
  const known = parts.get(name)
  if (known !== undefined) return known
  const plan = makePlan(type, own, only)
  parts.set(name, plan)
  return plan
}

const COLUMNS = new Set(['_id', '_lastUpdated'])

/** Canonical references contain a version, so it is read with the url. */
const CANONICAL_VERSION = 'version'

function makePlan(type: string, own: OwnParameters | undefined, only?: ParameterSubset): IndexPlan {
  const parameters: PlannedParameter[] = []
  const roots = new Map<string, Walk<Derivation>[]>()
  const whole: Walk<Derivation>[] = []
  const elements = new Set<string>([CANONICAL_VERSION])
  const sides = new Set<string>()
  const compartments: Walk<Set<string>>[][] = COMPARTMENTS.map(() => [])
  const members = COMPARTMENTS.map((compartment) => new Set(compartmentParams(compartment, type)))
  const main = mainDate(type)

  for (const parameter of searchParameters(type, own).values()) {
    if (parameter.expression === undefined || COLUMNS.has(parameter.code)) continue
    if (storedParameters(type, parameter.code)[0] !== parameter.code) continue
    const inside = members.map((codes) => codes.has(parameter.code))
    if (only !== undefined && !isAmong(only, parameter.code, inside)) continue
    const index = parameters.length
    const ownParameter = own?.types.get(type)?.get(parameter.code)
    if (ownParameter?.isGeneral) {
      const planned = generalParameter(ownParameter, index)
      parameters.push(planned)
      whole.push(bindGeneral(type, ownParameter, planned))
      elements.add(ANY_ELEMENT)
      sides.add(ANY_ELEMENT)
      continue
    }
    const compiled = compileExpression(type, parameter.expression)
    const isRead = (leg: Leg) => !ownParameter || isReadable(parameter.type, leg.type)
    const legs = compiled.filter(isRead)
    const planned: PlannedParameter = {
      code: parameter.code,
      index,
      isMainDate: parameter.code === main,
      isUsual: ownParameter === undefined && isUsual(type, parameter),
      types: [...new Set(legs.map((leg) => leg.type))],
      compartments: COMPARTMENTS.filter((_, i) => inside[i]).map((name) => `${name}/`),
    }
    parameters.push(planned)
    for (const leg of legs) {
      const walk = bindLeg(type, parameter, planned, leg)
      if (walk === undefined) continue
      const hasSides = makesSideRows(parameter, planned.isMainDate, leg)
      for (const name of elementsRead(type, parameter, leg)) {
        elements.add(name)
        // `meta` (such as `lastUpdated`) differs per version, and a custom parameter may search it.
        if (name === META && ownParameter !== undefined) elements.add(ANY_ELEMENT)
        if (hasSides) sides.add(name)
      }
      if (leg.root === undefined) whole.push(walk)
      else roots.set(leg.root, [...(roots.get(leg.root) ?? []), walk])
      if (parameter.type !== 'reference') continue
      COMPARTMENTS.forEach((name, i) => {
        if (inside[i]) compartments[i]?.push(leg.bind(collectTargets(leg.type, `${name}/`)))
      })
    }
  }
  const items = type === 'List' ? roots.get('entry') : undefined
  items?.push(removedItems)
  const stamp = [own?.stamp ?? '', ...(only === undefined ? [] : [only.stamp])].join('|')
  return { type, stamp, parameters, roots, whole, elements, sides, compartments }
}

/** Parameters that nearly all resources have, in addition to mandatory elements. */
const USUAL: ReadonlySet<string> = new Set([
  'active',
  'category',
  'code',
  'encounter',
  'family',
  'gender',
  'identifier',
  'name',
  'patient',
  'performer',
  'status',
  'subject',
  'value-quantity',
])
const WITH_KEYS: ReadonlySet<string> = new Set(['token', 'reference', 'uri', 'string', 'quantity'])

function isUsual(type: string, { code, type: kind, expression = '' }: SearchParameter): boolean {
  if (!WITH_KEYS.has(kind)) return false
  const paths = expression.split('|').map((path) => path.trim())
  const isRequired = ({ path, min = 0 }: ElementDefinition) =>
    min > 0 && paths.includes(`${type}.${path}`)
  return USUAL.has(code) || typeElements(type).some(isRequired)
}

function isAmong({ codes }: ParameterSubset, code: string, inside: readonly boolean[]): boolean {
  return codes.has(code) || (codes.has('_compartment') && inside.includes(true))
}

function collectTargets(type: string, prefix: string): Walk<Set<string>> {
  return (value, found) => {
    const literal = extractTarget(type, value)?.literal
    if (literal?.startsWith(prefix)) found.add(normalReference(literal))
  }
}

function generalParameter({ code, type }: OwnParameter, index: number): PlannedParameter {
  const types = type === 'token' ? ['Coding'] : type === 'reference' ? ['Reference'] : []
  return { code, index, isMainDate: false, isUsual: false, types, compartments: [] }
}

function bindGeneral(
  owner: string,
  parameter: OwnParameter,
  planned: PlannedParameter,
): Walk<Derivation> {
  const handlers = new Map<string, Walk<Derivation> | undefined>()
  return generalWalk(parameter, (type) => {
    if (!isReadable(parameter.type, type)) return undefined
    if (!handlers.has(type)) handlers.set(type, createHandler(owner, parameter, planned, type))
    return handlers.get(type)
  })
}

function bindLeg(
  owner: string,
  parameter: SearchParameter,
  planned: PlannedParameter,
  leg: Leg,
): Walk<Derivation> | undefined {
  if (parameter.type === 'composite') return planComposite(owner, parameter, planned.index, leg)
  const handler = createHandler(owner, parameter, planned, leg.type)
  return handler && leg.bind(handler)
}

function createHandler(
  owner: string,
  parameter: SearchParameter,
  planned: PlannedParameter,
  type: string,
): Walk<Derivation> | undefined {
  const { index } = planned
  switch (parameter.type) {
    case 'token': {
      const isFolded = parameter.code === 'email' || parameter.code === 'phone'
      return (value, into) => into.token(index, type, value, isFolded)
    }
    case 'reference':
      return (value, into) => into.reference(planned, type, value)
    case 'string':
      return (value, into) => into.string(index, type, value)
    case 'date':
      return (value, into) => into.date(planned, type, value)
    case 'number':
    case 'quantity':
      return (value, into) => into.quantity(index, type, value)
    case 'uri':
      return parameter.code === 'url' && parameter.expression === `${owner}.url`
        ? (value, into) => into.canonicalUrl(index, value)
        : (value, into) => into.uri(index, value)
    case 'special':
      return (value, into) => into.position(index, value)
    case 'composite':
      return undefined
    default: {
      const never: never = parameter.type
      return never
    }
  }
}

/** An item may still be a member by another entry. */
function removedItems(resource: unknown, into: Derivation): void {
  const entries = isObject(resource) ? toObjects(resource.entry) : []
  const kept = new Set<string>()
  const removed = new Set<string>()
  for (const entry of entries) {
    const literal = extractTarget('Reference', entry.item)?.literal
    if (literal === undefined) continue
    const list = entry.deleted === true ? removed : kept
    list.add(normalReference(literal))
  }
  for (const literal of removed.difference(kept)) into.removed(literal)
}

/** Pause after an expression timed out, so that it does not slow down every write of its Project. */
const REST_MS = 10_000
const resting = new Cache<string, true>({ name: 'slow-expressions', max: 10_000, ttlMs: REST_MS })
const SLOW = 'takes too long'

/** Values of unhandled types are skipped; a failing expression yields nothing. */
function generalWalk(
  parameter: OwnParameter,
  handlerOf: (type: string) => Walk<Derivation> | undefined,
): Walk<Derivation> {
  const run = compileTenantNodes(parameter.expression)
  const name = `${parameter.stamp} ${parameter.base}`
  return (resource, into) => {
    if (resting.has(name)) return
    try {
      for (const node of run(resource)) {
        const [value] = nodeValues([node])
        handlerOf(nodeType(node))?.(value, into)
      }
    } catch (error) {
      if (!(error instanceof HttpError)) throw error
      if (error.message.includes(SLOW)) resting.set(name, true)
      into.failed.push(parameter)
    }
  }
}

/** Elements know their type; a computed value is classified by its form. */
function nodeType(node: unknown): string {
  if (isObject(node) && typeof node.fhirNodeDataType === 'string') return node.fhirNodeDataType
  if (typeof node === 'boolean') return 'boolean'
  if (typeof node === 'number' || typeof node === 'bigint') return 'decimal'
  return typeof node === 'string' ? 'string' : 'dateTime'
}

// Elements that index rows come from: an update that leaves them unchanged keeps the rows.

const ANY_ELEMENT = '*'

/** Differs per version. */
const META = 'meta'
const OF_RESOURCE = '%resource.'

function elementsRead(type: string, parameter: SearchParameter, leg: Leg): readonly string[] {
  return parameter.type === 'composite' ? compositeElements(type, parameter, leg) : [legRoot(leg)]
}

function makesSideRows({ type }: SearchParameter, isMainDate: boolean, leg: Leg): boolean {
  switch (type) {
    case 'reference':
    case 'uri':
      return false
    case 'token':
      return leg.type === 'ContactPoint'
    case 'date':
      return !isMainDate
    case 'composite':
    case 'string':
    case 'number':
    case 'quantity':
    case 'special':
      return true
    default: {
      const never: never = type
      return never
    }
  }
}

/** True when no element with rows differs, nor the platform meta, such as the author. */
export function keepsRows(
  elements: ReadonlySet<string>,
  before: Resource,
  after: Resource,
): boolean {
  if (elements.has(ANY_ELEMENT)) return false
  for (const name of elements) {
    if (name !== META && !isSameValue(before[name], after[name])) return false
  }
  return isSameValue(indexedMeta(before.meta), indexedMeta(after.meta))
}

function indexedMeta({ versionId, lastUpdated, onBehalfOf, ...indexed }: Meta = {}): Meta {
  return indexed
}

/** True when no element with string or range rows differs. */
export function keepsSideRows(
  elements: ReadonlySet<string>,
  before: Resource,
  after: Resource,
): boolean {
  if (elements.has(ANY_ELEMENT) || elements.has(META)) return false
  for (const name of elements) if (!isSameValue(before[name], after[name])) return false
  return true
}

function compositeElements(
  type: string,
  { expression, components = [] }: SearchParameter,
  leg: Leg,
): readonly string[] {
  const isWhole = expression === type
  const found = isWhole ? [] : [legRoot(leg)]
  for (const component of components) {
    const isOfResource = component.expression.startsWith(OF_RESOURCE)
    if (!isWhole && !isOfResource) continue
    const path = isOfResource
      ? component.expression.slice(OF_RESOURCE.length)
      : component.expression
    found.push(...compileExpression(type, path).map(legRoot))
  }
  return found
}

function legRoot({ root }: Leg): string {
  return root ?? ANY_ELEMENT
}
