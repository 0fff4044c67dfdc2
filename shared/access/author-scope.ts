/**
 * The scope of a request, on what outlives the request. A Subscription acts with the rights of its author, so
 * its `meta.author` says how far they reach; an AsyncJob is for whoever reaches as far as the one who asked for
 * it. The service alone writes both places.
 */
import { isObject, type Reference } from '../fhir/resource.ts'
import { type Principal, profileReference } from './principal.ts'

type Scope = Pick<Principal, 'scope' | 'patient'>

const SCOPE = 'https://medplum.com/fhir/StructureDefinition/author-scope'
const PATIENT = 'https://medplum.com/fhir/StructureDefinition/author-patient'

/** As the extension of what a request leaves behind; nothing for who is not narrowed. */
export function scopeExtension(principal: Principal): { readonly extension?: readonly object[] } {
  if (principal.rules?.scoped === undefined) return {}
  const { scope, patient } = principal
  const context = patient === undefined ? [] : [{ url: PATIENT, valueString: patient }]
  return { extension: [{ url: SCOPE, valueString: scope }, ...context] }
}

export function scopedAuthor(principal: Principal): Reference {
  return { ...profileReference(principal), ...scopeExtension(principal) }
}

/** Undefined: whoever left it was not narrowed. */
export function scopeIn(element: { readonly extension?: unknown } | undefined): Scope | undefined {
  const given = Array.isArray(element?.extension) ? element.extension.filter(isObject) : []
  const text = (url: string) => {
    const value = given.find((item) => item.url === url)?.valueString
    return typeof value === 'string' ? value : undefined
  }
  const scope = text(SCOPE)
  return scope === undefined ? undefined : { scope, patient: text(PATIENT) }
}
