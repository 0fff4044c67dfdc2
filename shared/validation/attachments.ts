/** Attachments of a resource, wherever they stand: https://hl7.org/fhir/R4/datatypes.html#attachment */
import { isObject, isResource, type Resource } from '../fhir/resource.ts'
import { type Property, type Shape, shapeOf } from './shapes.ts'

export interface Attachment {
  readonly url?: unknown
  readonly contentType?: unknown
  readonly title?: unknown
}

/** The same object when none of them changes; what does is copied on its path. */
export function mapAttachments(
  resource: Resource,
  change: (attachment: Attachment) => Attachment,
): Resource {
  // An object stays one of its shape.
  return mapNode(resource, shapeOf(resource.resourceType), change) as Resource
}

type Change = (attachment: Attachment) => Attachment

function mapNode(node: object, shape: Shape, change: Change): object {
  let changed: Record<string, unknown> | undefined
  for (const [name, value] of Object.entries(node)) {
    const property = shape.properties.get(name)
    if (property === undefined || property.check !== undefined) continue
    const mapped = Array.isArray(value)
      ? mapItems(value, property, change)
      : mapValue(value, property, change)
    if (mapped === value) continue
    changed ??= { ...node }
    changed[name] = mapped
  }
  return changed ?? node
}

function mapItems(items: readonly unknown[], property: Property, change: Change): unknown {
  const mapped = items.map((item) => mapValue(item, property, change))
  return mapped.every((item, i) => item === items[i]) ? items : mapped
}

function mapValue(value: unknown, property: Property, change: Change): unknown {
  if (!isObject(value)) return value
  if (property.type === 'Attachment') return change(value)
  const shape = isResource(value) ? shapeOf(value.resourceType) : property.shape?.()
  return shape === undefined ? value : mapNode(value, shape, change)
}
