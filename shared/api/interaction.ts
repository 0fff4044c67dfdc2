/** One FHIR interaction on its way: who asks, what, and how the answer is to look. */
import type { Principal } from '../access/principal.ts'
import { badRequest, badStructure } from '../errors.ts'
import { allOk, created, type Issue, outcome } from '../fhir/outcome.ts'
import { isResource, parseReference, type Resource } from '../fhir/resource.ts'
import { requireValid } from '../fhir/validate.ts'
import { withoutEmpty } from '../fhir/without-empty.ts'
import type { Services } from '../services.ts'
import type { Version, WriteResult } from '../store/repository.ts'
import { present } from '../store/rows.ts'
import { signBinary, toBinaryPath } from './attachments.ts'
import type { FhirReply, FhirRequest } from './handle.ts'
import { mapStrings } from './map-strings.ts'
import type { Preferences } from './negotiate.ts'
import { versionHeaders } from './preconditions.ts'
import { emptyReply, outcomeReply, textReply } from './reply.ts'
import { canonicalId } from './route.ts'

export interface Interaction {
  readonly services: Services
  readonly principal: Principal
  readonly request: FhirRequest
  readonly preferences: Preferences
}

/** `http://…/fhir/R4/` and what follows it. */
export function absoluteUrl(services: Services, path: string): string {
  return `${services.config.baseUrl}fhir/R4/${path}`
}

/** The text of a version as the caller of this interaction may see it. */
export function textOf(interaction: Interaction, version: Version): string {
  const { services, principal, preferences } = interaction
  const text = present(version, principal, preferences.extended)
  return version.type === 'Binary' ? signBinary(services, version, text) : text
}

/** A body that has passed validation, with what validation had to remark. */
export interface Accepted {
  readonly resource: Resource
  readonly warnings: readonly Issue[]
}

/** Checks the body of a create or update. Errors: 400 wrong type, 400 with the issues of validation. */
export function acceptResource(interaction: Interaction, type: string, body: unknown): Accepted {
  const found = isResource(body) ? body.resourceType : undefined
  if (!isResource(body) || found !== type) {
    throw badStructure(
      `Incorrect resource type: expected ${type}, but found ${String(found).slice(0, 64)}`,
    )
  }
  return acceptValid(interaction, body)
}

/** Errors: 400 when the body of an update has another id than the address, or none. */
export function requireSameId(sent: unknown, id: string): void {
  if (sent === undefined) throw badRequest('Missing id', 'id')
  if (typeof sent !== 'string' || canonicalId(sent) !== id) {
    throw badRequest('Incorrect resource ID', 'id')
  }
}

export function acceptValid(interaction: Interaction, body: Resource): Accepted {
  const strict = interaction.principal.project.strictMode
  const resource = withRelativeAddresses(interaction, strict ? body : withoutEmpty(body))
  return { resource, warnings: requireValid(resource, { strict }) }
}

/** References and addresses of Binaries under our own base become `Type/id`, the form that is stored. */
function withRelativeAddresses({ services }: Interaction, resource: Resource): Resource {
  const base = absoluteUrl(services, '')
  return mapStrings(resource, (text, name) => {
    if (name === 'url' || name === 'path') return toBinaryPath(services.config.baseUrl, text)
    if (name !== 'reference' || !text.startsWith(base)) return text
    const relative = text.slice(base.length)
    return parseReference(relative) === undefined ? text : relative
  })
}

/** The answer to a write, as the Prefer header wants it. */
export function writeReply(
  interaction: Interaction,
  written: WriteResult,
  warnings: readonly Issue[],
): FhirReply {
  const { returned } = interaction.preferences
  const isNew = written.outcome === 'created'
  const status = isNew ? 201 : 200
  const location = `${written.type}/${written.id}/_history/${written.ver}`
  const headers = {
    ...versionHeaders(written),
    ...(isNew || interaction.request.method === 'POST'
      ? { Location: absoluteUrl(interaction.services, location) }
      : {}),
  }
  if (returned === 'minimal') return emptyReply(status, headers)
  if (returned === 'representation') {
    return textReply(status, textOf(interaction, written), headers)
  }
  const { id, issue } = isNew ? created : allOk
  return outcomeReply(status, outcome(id, ...issue, ...warnings), headers)
}
