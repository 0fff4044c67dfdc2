/** What properties an object of a type may have, made once per type from the definitions. */
import { elementsOf, isResourceType, typeDefinition } from './definitions.ts'
import type { ElementDefinition } from './definitions-data.ts'
import { isPrimitive, type PrimitiveCheck, primitiveCheck } from './primitives.ts'

export interface Property {
  readonly name: string
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
}

export interface Shape {
  readonly name: string
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
  if (typeDefinition(type) === undefined) throw new Error(`No definition of "${name}"`)
  const prefix = steps.length === 0 ? '' : `${steps.join('.')}.`
  const all = elementsOf(type)
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
  return { name, properties, required, choices }
}

function isPlainName(name: string): boolean {
  return !name.startsWith('_')
}

function propertiesOf(
  type: string,
  name: string,
  element: ElementDefinition,
  all: readonly ElementDefinition[],
): Property[] {
  const max = element.max === '*' ? Number.POSITIVE_INFINITY : Number(element.max ?? 1)
  const counts = { isArray: max > 1, min: element.min ?? 0, max }
  if (element.content !== undefined) return [objectProperty(name, element.content, counts)]
  const isInner = all.some((other) => other.path.startsWith(`${element.path}.`))
  if (isInner) return [objectProperty(name, `${type}.${element.path}`, counts)]
  return element.types.flatMap(({ code }) => {
    const suffix = element.choice ? code.charAt(0).toUpperCase() + code.slice(1) : ''
    // The definitions call the id of a resource a string; it has the format of an id.
    const isResourceId = element.path === 'id' && isResourceType(type)
    return typedProperties(name + suffix, isResourceId ? 'id' : code, counts)
  })
}

type Counts = Pick<Property, 'isArray' | 'min' | 'max'>

function typedProperties(name: string, code: string, counts: Counts): Property[] {
  if (!isPrimitive(code)) {
    const isAnyResource = code === 'Resource' || isResourceType(code)
    return [objectProperty(name, isAnyResource ? undefined : code, counts)]
  }
  const primitive: Property = {
    ...counts,
    name,
    check: primitiveCheck(code),
    shape: undefined,
    isReference: false,
    isSibling: false,
  }
  return [primitive, { ...objectProperty(`_${name}`, 'Element', counts), isSibling: true }]
}

function objectProperty(name: string, shape: string | undefined, counts: Counts): Property {
  const isReference = shape === 'Reference'
  const properties = { ...counts, name, check: undefined, isReference, isSibling: false }
  return { ...properties, shape: shape === undefined ? undefined : later(() => shapeOf(shape)) }
}

/** Types refer to each other in circles, so a shape is looked up when it is first met. */
function later(find: () => Shape): () => Shape {
  let found: Shape | undefined
  return () => {
    found ??= find()
    return found
  }
}
