/** The elements of a StructureDefinition as a tree. https://hl7.org/fhir/R4/elementdefinition.html */
import { getOrInsert } from '../../core/cache.ts'
import type { Constraint } from '../../fhir/definitions-data.ts'
import { asArray, canonicalUrl, isObject, type Meta } from '../../fhir/resource.ts'
import type { Run } from '../profile-run.ts'

export interface ProfileElement {
  readonly id?: string
  readonly path: string
  readonly sliceName?: string
  readonly min?: number
  readonly max?: string
  readonly type?: readonly {
    readonly code: string
    readonly profile?: readonly string[]
    readonly targetProfile?: readonly string[]
  }[]
  readonly slicing?: {
    readonly discriminator?: readonly Discriminator[]
    readonly rules?: string
    readonly ordered?: boolean
  }
  readonly constraint?: readonly Constraint[]
  readonly binding?: { readonly strength: string; readonly valueSet?: string }
  readonly maxLength?: number
  readonly fixedUri?: string
}

export interface Discriminator {
  readonly type: string
  readonly path: string
}

/** A profile, reduced to the elements in use: https://hl7.org/fhir/R4/structuredefinition.html */
export interface StructureDefinition {
  readonly id?: string | undefined
  readonly meta?: Meta | undefined
  readonly version?: string | undefined
  readonly url: string
  readonly type: string
  readonly baseDefinition?: string | undefined
  readonly snapshot?: { readonly element: readonly ProfileElement[] }
  readonly differential?: { readonly element: readonly ProfileElement[] }
}

export interface ElementNode {
  /** Without `[x]`. */
  readonly name: string
  element: ProfileElement | undefined
  readonly children: Map<string, ElementNode>
  readonly slices: Map<string, ElementNode>
}

/** Maximum JSON nesting of a body. */
const MAX_STEPS = 64

/** Ignores elements without members that the standard requires: a Project that is not strict may store them. */
export function profileElements({
  snapshot,
  differential,
}: StructureDefinition): readonly ProfileElement[] {
  return (snapshot?.element ?? differential?.element ?? []).filter(isComplete)
}

function isComplete({ id, path, slicing, type = [] }: ProfileElement): boolean {
  const discriminators = slicing?.discriminator?.map((one) => one.path) ?? []
  const codes = type.map(({ code }) => code)
  return [id ?? path, ...discriminators, ...codes].every((text: unknown) => text !== undefined)
}

export function requiredSet(element: ProfileElement | undefined): string | undefined {
  const { strength, valueSet } = element?.binding ?? {}
  return strength === 'required' ? valueSet : undefined
}

/** Builds the tree of a profile and its bases; each adds to the next. */
export function buildElementTree(derived: readonly StructureDefinition[]): ElementNode {
  const root = createNode('')
  for (const element of derived.toReversed().flatMap(profileElements)) {
    const steps = elementSteps(element)
    if (steps.length > MAX_STEPS) continue
    let node = root
    for (const { name, slices } of steps) {
      node = getOrInsert(node.children, name, () => createNode(name))
      for (const slice of slices) node = getOrInsert(node.slices, slice, () => createNode(name))
    }
    node.element = merged(node.element, element)
  }
  return root
}

function merged(base: ProfileElement | undefined, own: ProfileElement): ProfileElement {
  const constraint = [...(base?.constraint ?? []), ...(own.constraint ?? [])]
  const byKey = new Map(constraint.map((item) => [item.key, item]))
  return { ...base, ...own, constraint: [...byKey.values()] }
}

/** Splits `Patient.extension:race.value[x]` without its first part; slice `b` of slice `a` is `a/b`. */
function elementSteps({ id, path, sliceName }: ProfileElement) {
  const text = id ?? (sliceName === undefined ? path : `${path}:${sliceName}`)
  const [, ...steps] = text.split('.')
  return steps.map((step) => {
    const colon = step.indexOf(':')
    const name = (colon === -1 ? step : step.slice(0, colon)).replace('[x]', '')
    return { name, slices: colon === -1 ? [] : step.slice(colon + 1).split('/') }
  })
}

function createNode(name: string): ElementNode {
  return { name, element: undefined, children: new Map(), slices: new Map() }
}

/** Checks the members that a profile needs; stored resources have passed validation. */
export function isStructureDefinition(value: unknown): value is StructureDefinition {
  return isObject(value) && typeof value.url === 'string' && typeof value.type === 'string'
}

// Discriminator paths, a subset of FHIRPath: children, `extension(url)`, `resolve()`, `ofType(type)`.
// https://hl7.org/fhir/R4/profiling.html#discriminator

export type Step =
  | { readonly kind: 'child'; readonly name: string; readonly type: string | undefined }
  | { readonly kind: 'extension'; readonly url: string }
  | { readonly kind: 'resolve' }

const STEP =
  /^(?:extension\('([^']*)'\)|(resolve\(\))|([A-Za-z]\w*)(?:\[x\])?(?:\.ofType\((\w+)\))?)(?:\.|$)/

/** Returns undefined for other paths. */
export function parseSteps(path: string): readonly Step[] | undefined {
  const steps: Step[] = []
  let rest = path.replace(/^\$this(\.|$)/, '')
  while (rest !== '') {
    const match = STEP.exec(rest)
    if (match === null) return undefined
    const [all, url, resolve, name = '', type] = match
    if (url !== undefined) steps.push({ kind: 'extension', url })
    else if (resolve !== undefined) steps.push({ kind: 'resolve' })
    else steps.push({ kind: 'child', name, type })
    rest = rest.slice(all.length)
  }
  return steps
}

export function nodeAt(node: ElementNode, steps: readonly Step[]): ElementNode | undefined {
  const [step, ...rest] = steps
  if (step === undefined) return node
  const next = nextNode(node, step)
  return next && nodeAt(next, rest)
}

function nextNode(node: ElementNode, step: Step): ElementNode | undefined {
  if (step.kind === 'resolve') return node
  if (step.kind === 'child') return node.children.get(step.name)
  const slices = node.children.get('extension')?.slices.values() ?? []
  return [...slices].find((slice) => extensionUrl(slice) === step.url)
}

/** An extension has the url of its definition: https://hl7.org/fhir/R4/extensibility.html */
export function extensionUrl({ element, children }: ElementNode): unknown {
  const [profile] = element?.type?.flatMap((type) => type.profile ?? []) ?? []
  return (profile && canonicalUrl(profile)) ?? children.get('url')?.element?.fixedUri
}

/** A value and the type suffix of its property: `Quantity` of `valueQuantity`. */
export interface Typed {
  readonly value: unknown
  readonly type: string | undefined
}

export function valuesAt(value: unknown, steps: readonly Step[], run: Run): readonly Typed[] {
  let found: readonly Typed[] = [{ value, type: undefined }]
  for (const step of steps) {
    run.spend(found.length)
    found = found.flatMap((item) => next(item.value, step, run))
  }
  return found
}

function next(value: unknown, step: Step, { resource }: Run): readonly Typed[] {
  switch (step.kind) {
    case 'child':
      return childValues(value, step.name).filter(
        ({ type }) => step.type === undefined || isNamed(type, step.type),
      )
    case 'extension':
      return childValues(value, 'extension').filter(
        (item) => isObject(item.value) && item.value.url === step.url,
      )
    case 'resolve': {
      const target = resolved(value, resource)
      return target === undefined ? [] : [{ value: target, type: target.resourceType }]
    }
    default:
      return step satisfies never
  }
}

/** Returns the values of an element; a choice is named without its type. */
function childValues(value: unknown, name: string): readonly Typed[] {
  if (!isObject(value)) return []
  const isThere = Object.hasOwn(value, name)
  return Object.entries(value).flatMap(([key, content]): Typed[] => {
    const suffix = key.slice(name.length)
    const isChoice = !isThere && key.startsWith(name) && /^[A-Z]/.test(suffix)
    if (key !== name && !isChoice) return []
    const items: readonly unknown[] = Array.isArray(content) ? content : [content]
    const present = items.filter((item) => item !== undefined && item !== null)
    return present.map((item) => ({
      value: item,
      type: resourceTypeName(item) ?? (suffix || undefined),
    }))
  })
}

function resourceTypeName(value: unknown): string | undefined {
  return isObject(value) && typeof value.resourceType === 'string' ? value.resourceType : undefined
}

/** Property names capitalise types: `string` is `String`. */
export function isNamed(type: string | undefined, code: string): boolean {
  return type === code || type === code.charAt(0).toUpperCase() + code.slice(1)
}

const TYPED = /(?:^|\/)([A-Z][A-Za-z]+)\/[A-Za-z0-9\-.]{1,64}(?:\/_history\/[^/]+)?$/

interface Target {
  readonly resourceType: string
  readonly [name: string]: unknown
}

/** Returns the contained resource, or the type named in the reference. */
function resolved(value: unknown, { contained }: Run['resource']): Target | undefined {
  if (!isObject(value) || typeof value.reference !== 'string') return undefined
  const { reference } = value
  if (reference.startsWith('#')) {
    const all = asArray(contained)
    const id = reference.slice(1)
    const found = all.find((item) => isObject(item) && item.id === id)
    return resourceTypeName(found) === undefined ? undefined : (found as Target)
  }
  const [, type = value.type] = TYPED.exec(reference) ?? []
  return typeof type === 'string' ? { resourceType: type } : undefined
}
