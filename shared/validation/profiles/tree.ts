/** The elements of a StructureDefinition as a tree. https://hl7.org/fhir/R4/elementdefinition.html */
import type { Constraint } from '../../fhir/definitions-data.ts'
import { isObject, type Meta } from '../../fhir/resource.ts'

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

/** A profile, as far as it is read: https://hl7.org/fhir/R4/structuredefinition.html */
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
  /** By name of the slice. */
  readonly slices: Map<string, ElementNode>
}

/** The JSON of a body nests no deeper. */
const MAX_STEPS = 64

/** The snapshot or, where there is none, the differential. */
export function elementsOf({
  snapshot,
  differential,
}: StructureDefinition): readonly ProfileElement[] {
  return snapshot?.element ?? differential?.element ?? []
}

/** The value set of a required binding. */
export function requiredSet(element: ProfileElement | undefined): string | undefined {
  const { strength, valueSet } = element?.binding ?? {}
  return strength === 'required' ? valueSet : undefined
}

/** The root of a profile and of those that it is derived from, each of which adds to the one after it. */
export function treeOf(derived: readonly StructureDefinition[]): ElementNode {
  const root = nodeOf('')
  for (const element of derived.toReversed().flatMap(elementsOf)) {
    const steps = stepsOf(element)
    if (steps.length > MAX_STEPS) continue
    let node = root
    for (const { name, slices } of steps) {
      node = childOf(node.children, name, name)
      for (const slice of slices) node = childOf(node.slices, slice, name)
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

/** `Patient.extension:race.value[x]` without its first part; a slice of the slice `a` is named `a/b`. */
function stepsOf({ id, path, sliceName }: ProfileElement) {
  const text = id ?? (sliceName === undefined ? path : `${path}:${sliceName}`)
  const [, ...steps] = text.split('.')
  return steps.map((step) => {
    const colon = step.indexOf(':')
    const name = (colon === -1 ? step : step.slice(0, colon)).replace('[x]', '')
    return { name, slices: colon === -1 ? [] : step.slice(colon + 1).split('/') }
  })
}

function childOf(nodes: Map<string, ElementNode>, key: string, name: string): ElementNode {
  const known = nodes.get(key)
  if (known !== undefined) return known
  const made = nodeOf(name)
  nodes.set(key, made)
  return made
}

function nodeOf(name: string): ElementNode {
  return { name, element: undefined, children: new Map(), slices: new Map() }
}

/** True for a resource that has what a profile needs; a stored one has passed validation. */
export function isStructureDefinition(value: unknown): value is StructureDefinition {
  return isObject(value) && typeof value.url === 'string' && typeof value.type === 'string'
}
