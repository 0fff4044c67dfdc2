/** Codes of required bindings and types of references, where the definitions list what is allowed. */

import { isResourceType } from '../fhir/definitions.ts'
import { isObject, parseReference, type Resource } from '../fhir/resource.ts'
import { bindingFault, publishedCodes } from './bindings.ts'
import type { Report } from './report.ts'
import { type Property, type Shape, shapeOf } from './shapes.ts'

/** The resource has passed the check of its structure; `report` stands at it. */
export function checkBindings(resource: Resource, report: Report): void {
  checkObject(resource, shapeOf(resource.resourceType), report)
}

function checkObject(value: Record<string, unknown>, shape: Shape, report: Report): void {
  for (const [name, content] of Object.entries(value)) {
    const property = shape.properties.get(name)
    if (property === undefined) continue
    report.enter(name)
    if (!Array.isArray(content)) checkItem(content, property, report)
    else {
      for (const [index, item] of content.entries()) {
        report.enter(index)
        checkItem(item, property, report)
        report.leave()
      }
    }
    report.leave()
  }
}

function checkItem(value: unknown, property: Property, report: Report): void {
  if (property.binding !== undefined && !property.isSibling) {
    const codes = publishedCodes(property.binding)
    const fault = codes && bindingFault(value, property.binding, codes)
    if (fault !== undefined) report.rule(fault, undefined, 'value')
  }
  if (!isObject(value)) return
  if (property.isReference) checkTarget(value, property.targets, report)
  const { resourceType } = value
  if (property.shape !== undefined) checkObject(value, property.shape(), report)
  else if (typeof resourceType === 'string' && isResourceType(resourceType)) {
    checkObject(value, shapeOf(resourceType), report)
  }
}

/** Told, never refused: servers disagree on what may stand in for what. */
export function checkTarget(
  { reference }: Record<string, unknown>,
  targets: readonly string[] | undefined,
  report: Report,
): void {
  const type = typeof reference === 'string' ? parseReference(reference)?.type : undefined
  if (type === undefined || targets === undefined || targets.includes(type)) return
  const text = `Invalid reference: expected ${targets.join(' or ')}, but found ${type}`
  report.add('warning', 'structure', text, 'reference')
}
