/** URLs of Binaries in resources: stored as `Binary/{id}`, shown as signed URLs to callers who may read the Binary. */

import type { Principal } from '../../access/principal.ts'
import { parseJson } from '../../fhir/json.ts'
import { present } from '../../store/rows/rows.ts'
import { platformMeta, type Version } from '../../store/rows/version.ts'
import type { FhirContext } from '../request.ts'
import type { Services } from '../services.ts'

const BINARY = /^Binary\/([A-Za-z0-9\-.]{1,64})(?:\/_history\/[^/?]+)?$/
const STORAGE = /^([A-Za-z0-9\-.]{1,64})\/\d+(?:\?|$)/

/** Returns `Binary/{id}` for any URL of a Binary of this server; other text is unchanged. */
export function toBinaryPath(baseUrl: string, text: string): string {
  const fhir = `${baseUrl}fhir/R4/`
  const storage = `${baseUrl}storage/`
  const id = text.startsWith(storage)
    ? STORAGE.exec(text.slice(storage.length))?.[1]
    : BINARY.exec(text.startsWith(fhir) ? text.slice(fhir.length) : text)?.[1]
  return id === undefined ? text : `Binary/${id}`
}

// Quotes within JSON strings are escaped, so this matches members only.
const MEMBER = /("(?:url|path)":\s*)"Binary\/([A-Za-z0-9\-.]{1,64})"/g

/** Signs the Binaries in the JSON text of a reply. */
export async function signAttachments(
  services: Services,
  principal: Principal,
  text: string,
): Promise<string> {
  const sign = await createSigner(services, principal, [text])
  return sign(text)
}

/** False when there is nothing to sign. A substring search, much faster than a pattern that starts with a quote. */
export function namesBinary(text: string): boolean {
  return text.includes('Binary/')
}

/** Signs the Binaries that the texts mention: one statement for all, one signature each. */
export async function createSigner(
  { repository, signedUrls }: Services,
  principal: Principal,
  texts: readonly string[],
): Promise<(text: string) => string> {
  const ids = new Set<string>()
  for (const text of texts) {
    if (!namesBinary(text)) continue
    for (const { 2: id = '', index } of text.matchAll(MEMBER)) {
      if (!isRequest(text, index)) ids.add(id)
    }
  }
  if (ids.size === 0) return (text) => text
  const heads = await repository.readBinaries(principal, [...ids])
  const signed = new Map(
    [...heads].map(([id, { projectId, ver }]) => [
      id,
      signedUrls.sign({ project: projectId, id, ver, membershipId: principal.membershipId }),
    ]),
  )
  return (text) => {
    if (!namesBinary(text)) return text
    return text.replace(MEMBER, (member: string, name: string, id: string, offset: number) => {
      const url = signed.get(id)
      if (url === undefined || isRequest(text, offset)) return member
      return name + JSON.stringify(url)
    })
  }
}

/** `request.url` of a bundle entry is an API path, not an attachment. */
function isRequest(text: string, offset: number): boolean {
  return /"request":\s*$/.test(text.slice(0, text.lastIndexOf('{', offset)).slice(-20))
}

/** Returns the JSON text of a Binary for this caller: signed URL, no `data`. */
export function signBinary(
  { signedUrls }: Services,
  { membershipId }: Principal,
  version: Version,
  text: string,
): string {
  const { data: _data, url: _url, ...shown } = parseJson(text) as Record<string, unknown>
  const { project = '' } = platformMeta(version)
  const url = signedUrls.sign({ project, id: version.id, ver: version.ver, membershipId })
  return JSON.stringify({ ...shown, url })
}

export function versionText(context: FhirContext, version: Version): string {
  const { services, principal, preferences } = context
  const text = present(version, principal, preferences.extended)
  return version.type === 'Binary' ? signBinary(services, principal, version, text) : text
}
