/** A search expression that only the FHIRPath engine understands, within the limits of a tenant's. */
import { LRUCache } from 'lru-cache'
import { HttpError } from '../../errors.ts'
import type { OwnParameter } from '../../fhir/definitions-data.ts'
import { isObject } from '../../fhir/resource.ts'
import { compileTenantNodes } from '../../fhirpath/custom.ts'
import type { Walk } from '../../fhirpath/extract.ts'
import { valuesOf } from '../../fhirpath/path.ts'
import type { Derivation } from './derivation.ts'

/**
 * An expression that has used up its time is left alone for a while, lest each write of its Project
 * takes that time from the others; its rows are missing meanwhile, and it could not make them.
 */
const REST_MS = 10_000
const resting = new LRUCache<string, true>({ max: 10_000, ttl: REST_MS })
const SLOW = 'takes too long'

/** Values of types that nobody handles are left out; an expression that fails yields nothing. */
export function generalWalk(
  parameter: OwnParameter,
  handlerOf: (type: string) => Walk<Derivation> | undefined,
): Walk<Derivation> {
  const run = compileTenantNodes(parameter.expression)
  const name = `${parameter.stamp} ${parameter.base}`
  return (resource, into) => {
    if (resting.has(name)) return
    try {
      for (const node of run(resource)) {
        const [value] = valuesOf([node])
        handlerOf(typeOf(node))?.(value, into)
      }
    } catch (error) {
      if (!(error instanceof HttpError)) throw error
      if (error.message.includes(SLOW)) resting.set(name, true)
      into.failed.push(parameter)
    }
  }
}

/** Elements know their type; a computed value is classified by its form. */
function typeOf(node: unknown): string {
  if (isObject(node) && typeof node.fhirNodeDataType === 'string') return node.fhirNodeDataType
  if (typeof node === 'boolean') return 'boolean'
  if (typeof node === 'number' || typeof node === 'bigint') return 'decimal'
  return typeof node === 'string' ? 'string' : 'dateTime'
}
