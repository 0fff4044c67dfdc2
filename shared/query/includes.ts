/** `_include` and `_revinclude` → Include. https://hl7.org/fhir/R4/search.html#revinclude */
import { badRequest } from '../errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { readyParameter } from './custom-parameters.ts'
import type { Include, Refusal } from './search-request.ts'

/** Errors: 400 for an impossible modifier; a refusal for what names no reference. */
export function readInclude(
  name: string,
  value: string,
  own: OwnParameters | undefined,
): Include | Refusal {
  const [kind = '', modifier, ...others] = name.slice(1).split(':')
  if (others.length > 0 || ![undefined, 'iterate', 'recurse'].includes(modifier)) {
    throw badRequest(`Invalid modifier :${name.slice(kind.length + 2)} for _${kind}`, name)
  }
  const found = {
    kind: kind === 'include' ? 'include' : 'revinclude',
    iterate: modifier !== undefined,
  } as const
  if (value === '*') return { ...found, type: undefined, code: undefined, target: undefined }
  const [type = '', code = '', target, ...more] = value.split(':')
  const isKnown =
    more.length === 0 &&
    isResourceType(type) &&
    (target === undefined || isResourceType(target)) &&
    (code === '*' || readyParameter(type, code, own)?.type === 'reference')
  if (!isKnown) return { reason: badRequest(`Invalid include parameter: ${value}`, name) }
  return { ...found, type, code: code === '*' ? undefined : code, target }
}
