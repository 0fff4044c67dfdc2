/** The properties that an object of a type may have, made once per type from the definitions. */

import { isResourceType, typeDefinition } from '../fhir/definitions.ts'
import type { ElementDefinition } from '../fhir/definitions-data.ts'
import { isPrimitive, type PrimitiveCheck, primitiveCheck } from '../fhir/primitives.ts'
import { type Invariant, invariantsOf, UNIVERSAL } from './invariants.ts'

export interface Property {
  readonly name: string
  /** `value` of `valueQuantity`; undefined for an element of one type. */
  readonly choice: string | undefined
  /** `Quantity`, `code`, `Claim.item`; `Resource` for any resource. */
  readonly type: string
  readonly isArray: boolean
  readonly min: number
  readonly max: number
  /** Set for a primitive. */
  readonly check: PrimitiveCheck | undefined
  /** The shape of an object; undefined for a primitive and for any resource. */
  readonly shape: (() => Shape) | undefined
  readonly isReference: boolean
  /** Holds id and extensions of a primitive: `_birthDate`. */
  readonly isSibling: boolean
  /** The invariants of this element alone; those of its type are in the shape. */
  readonly invariants: readonly Invariant[]
  /** Value set of a required binding. */
  readonly binding: string | undefined
  /** Types that a Reference may point at; undefined: any. */
  readonly targets: readonly string[] | undefined
}

export interface Shape {
  readonly name: string
  readonly invariants: readonly Invariant[]
  readonly properties: ReadonlyMap<string, Property>
  /** Elements of which one name must be there. */
  readonly required: readonly Alternatives[]
  /** Choices, of which at most one name may be there. */
  readonly choices: readonly Alternatives[]
}

export interface Alternatives {
  /** As the standard writes it: `value[x]`. */
  readonly element: string
  readonly names: readonly string[]
}

/** The shape of `Patient`, `HumanName` or `Patient.contact`. Throws for a name without definition. */
export function shapeOf(name: string): Shape {
  const known = shapes.get(name)
  if (known) return known
  const shape = compile(name)
  shapes.set(name, shape)
  return shape
}

const shapes = new Map<string, Shape>()

function compile(name: string): Shape {
  const [type = '', ...steps] = name.split('.')
  const definition = typeDefinition(type)
  if (definition === undefined) throw new Error(`No definition of "${name}"`)
  const prefix = steps.length === 0 ? '' : `${steps.join('.')}.`
  const all = definition.elements
  const properties = new Map<string, Property>()
  const required: Alternatives[] = []
  const choices: Alternatives[] = []
  for (const element of all) {
    if (!element.path.startsWith(prefix)) continue
    const own = element.path.slice(prefix.length)
    if (own.includes('.')) continue
    const made = propertiesOf(type, own, element, all)
    for (const property of made) properties.set(property.name, property)
    const names = made.map((property) => property.name)
    const alternatives = { element: element.choice ? `${own}[x]` : own, names }
    if (element.min) required.push(alternatives)
    if (element.choice) choices.push({ ...alternatives, names: names.filter(isPlainName) })
  }
  const { constraints } = all.find(({ path }) => `${path}.` === prefix) ?? definition
  const invariants = [...invariantsOf(constraints, name), ...(UNIVERSAL.get(name) ?? [])]
  return { name, invariants, properties, required, choices }
}

function isPlainName(name: string): boolean {
  return !name.startsWith('_')
}

function propertiesOf(
  owner: string,
  name: string,
  element: ElementDefinition,
  all: readonly ElementDefinition[],
): Property[] {
  const max = element.max === '*' ? Number.POSITIVE_INFINITY : Number(element.max ?? 1)
  const path = `${owner}.${element.path}`
  const base: Property = {
    name,
    choice: element.choice ? name : undefined,
    type: element.content ?? path,
    isArray: max > 1,
    min: element.min ?? 0,
    max,
    check: undefined,
    shape: undefined,
    isReference: false,
    isSibling: false,
    invariants: [],
    binding: element.binding,
    targets: undefined,
  }
  if (element.content !== undefined) return [objectProperty(base, element.content)]
  const isInner = all.some((other) => other.path.startsWith(`${element.path}.`))
  if (isInner) return [objectProperty(base, path)]
  return element.types.flatMap(({ code, targets }) => {
    const suffix = element.choice ? code.charAt(0).toUpperCase() + code.slice(1) : ''
    // The definitions call the id of a resource a string; it has the format of an id.
    const isResourceId = element.path === 'id' && isResourceType(owner)
    const type = isResourceId ? 'id' : code
    const invariants = [...invariantsOf(element.constraints, code), ...(UNIVERSAL.get(path) ?? [])]
    return typedProperties({ ...base, name: name + suffix, type, invariants, targets })
  })
}

function typedProperties(property: Property): Property[] {
  const { name, type, choice } = property
  if (!isPrimitive(type)) {
    const isAnyResource = type === 'Resource' || isResourceType(type)
    return [objectProperty(property, isAnyResource ? undefined : type)]
  }
  const sibling = { ...property, name: `_${name}`, type: 'Element', invariants: [] }
  return [
    { ...property, check: primitiveCheck(type) },
    { ...objectProperty(sibling, 'Element'), choice, isSibling: true },
  ]
}

function objectProperty(property: Property, shape: string | undefined): Property {
  return {
    ...property,
    isReference: shape === 'Reference',
    shape: shape === undefined ? undefined : later(() => shapeOf(shape)),
  }
}

/** Types refer to each other in circles, so a shape is looked up when it is first met. */
function later(find: () => Shape): () => Shape {
  let found: Shape | undefined
  return () => {
    found ??= find()
    return found
  }
}
