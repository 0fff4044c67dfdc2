/** Reads of one resource. https://hl7.org/fhir/R4/http.html#read */
import { SUBSCRIPTION } from '../access/subscription.ts'
import { notFound } from '../core/errors.ts'
import { parseView, requireElements } from '../fhir/view.ts'
import { versionText } from '../request/binary/attachments.ts'
import { withData } from '../request/binary/read.ts'
import { wantsStrict } from '../request/negotiate.ts'
import { emptyReply, isUnmodified, textReply, versionHeaders } from '../request/reply.ts'
import type { FhirContext, FhirReply } from '../request/request.ts'
import type { Version } from '../store/rows/version.ts'
import { readSocketSubscription, storedOrHeld } from '../subscriptions/socket-subscriptions.ts'

export async function read(context: FhirContext, type: string, id: string): Promise<FhirReply> {
  const { services, principal } = context
  const stored = () => services.repository.read(principal, type, id)
  if (type !== SUBSCRIPTION) return replyWith(context, await stored())
  const held = () => readSocketSubscription(services, principal, id)
  return replyWith(context, await storedOrHeld(type, stored, held))
}

export async function vread(
  context: FhirContext,
  type: string,
  id: string,
  vid: string,
): Promise<FhirReply> {
  if (!/^[1-9]\d{0,8}$/.test(vid)) throw notFound()
  const { services, principal } = context
  return replyWith(context, await services.repository.readVersion(principal, type, id, vid))
}

/** A Binary as JSON includes its content if it was created so or with `_data=true`. */
export async function replyWith(context: FhirContext, version: Version): Promise<FhirReply> {
  const { services, request } = context
  const reply = versionReply(context, version)
  const { body } = reply
  if (version.type !== 'Binary' || typeof body !== 'string') return reply
  const isAsked = request.query.get('_data') === 'true'
  if (!isAsked && parseView(version.type, request.query) !== undefined) return reply
  return { ...reply, body: await withData(services, version, body, isAsked) }
}

function versionReply(context: FhirContext, version: Version): FhirReply {
  const { request } = context
  const { lastUpdated } = version
  const headers = versionHeaders(version)
  if (isUnmodified(request, version)) return { ...emptyReply(304, headers), lastUpdated }
  if (wantsStrict(request.headers.prefer)) requireElements([version.type], request.query)
  const view = parseView(version.type, request.query)
  const text = versionText(context, version)
  return { ...textReply(200, view === undefined ? text : view(text), headers), lastUpdated }
}
