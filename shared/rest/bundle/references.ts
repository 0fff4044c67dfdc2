/**
 * Links between the entries of one bundle: `urn:uuid:…` and `urn:oid:…`, wherever they stand in a
 * string, and absolute addresses of entries that get a new id.
 * https://hl7.org/fhir/R4/http.html#trules
 */
import { mapStrings } from '../../request/map-strings.ts'

/** fullUrl of an entry → `Type/id` it stands for. */
export type Identities = Map<string, string>

/** The resource or patch with every link replaced; the same value when there is none. */
export function rewrite<T>(content: T, identities: Identities): T {
  if (identities.size === 0) return content
  return mapStrings(content, (text, name) => rewriteText(text, identities, name))
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
