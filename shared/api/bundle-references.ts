/**
 * Links between the entries of one bundle: `urn:uuid:…` and `urn:oid:…`, wherever they stand in a
 * string, and absolute addresses of entries that get a new id.
 * https://hl7.org/fhir/R4/http.html#trules
 */
import { isDecimal } from '../fhir/json.ts'
import type { Resource } from '../fhir/resource.ts'

/** fullUrl of an entry → `Type/id` it stands for. */
export type Identities = ReadonlyMap<string, string>

/** The resource with every link replaced; the same object when there is none. */
export function rewrite(resource: Resource, identities: Identities): Resource {
  // Rewriting changes strings only, so the result has the shape of what goes in.
  return identities.size === 0 ? resource : (rewriteValue(resource, identities, '') as Resource)
}

function rewriteValue(value: unknown, identities: Identities, name: string): unknown {
  if (typeof value === 'string') return rewriteText(value, identities, name)
  if (typeof value !== 'object' || value === null || isDecimal(value)) return value
  if (Array.isArray(value)) return rewriteItems(value, identities, name)
  let changed: Record<string, unknown> | undefined
  for (const [key, item] of Object.entries(value)) {
    const rewritten = rewriteValue(item, identities, key)
    if (rewritten === item) continue
    changed ??= { ...value }
    changed[key] = rewritten
  }
  return changed ?? value
}

function rewriteItems(items: readonly unknown[], identities: Identities, name: string): unknown {
  const rewritten = items.map((item) => rewriteValue(item, identities, name))
  return rewritten.every((item, index) => item === items[index]) ? items : rewritten
}

const URN =
  /urn(?::|%3A)uuid(?::|%3A)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|urn(?::|%3A)oid(?::|%3A)[0-2](?:\.\d+)+/gi

function rewriteText(text: string, identities: Identities, name: string): string {
  if (name === 'reference') {
    const target = identities.get(text)
    if (target !== undefined) return target
  }
  if (!/urn(?::|%3A)/i.test(text)) return text
  return text.replace(URN, (urn) => identities.get(urnKey(urn)) ?? urn)
}

/** One spelling of a urn: percent signs decoded, hexadecimal digits in lower case. */
export function urnKey(urn: string): string {
  return urn.replaceAll(/%3A/gi, ':').toLowerCase()
}
