/** Stores feedback on cards as AuditEvents of the Project. https://cds-hooks.hl7.org/2.0/#feedback */
import { servicePrincipal } from '../../shared/access/principal.ts'
import { badRequest } from '../../shared/core/errors.ts'
import { isObject, type Resource } from '../../shared/fhir/resource.ts'
import { parseDate } from '../../shared/fhir/values.ts'
import { restEvent } from '../../shared/request/admin-audit.ts'
import { tracingExtension } from '../../shared/request/reply.ts'
import type { CdsCaller } from './prefetch.ts'

type Parts = Readonly<Record<string, unknown>>

const MOST_ITEMS = 100
const MOST_TEXT = 4096
const OUTCOMES = ['accepted', 'overridden']
const INSTANT = /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$/

/** All or none. Errors: 400 with the place in the body. */
export async function storeFeedback(caller: CdsCaller, botId: string, body: Parts): Promise<void> {
  const { feedback } = body
  if (!Array.isArray(feedback) || feedback.length === 0 || feedback.length > MOST_ITEMS) {
    throw badRequest(`feedback must be a list of 1 to ${MOST_ITEMS} items`, 'feedback')
  }
  const events = feedback.map((item, i) => feedbackEvent(caller, botId, item, `feedback[${i}]`))
  const { services, principal } = caller
  const author = servicePrincipal(principal.project, principal)
  await services.repository.transaction(async (repository) => {
    for (const event of events) await repository.create(author, event)
  })
}

function feedbackEvent(
  { principal, request }: CdsCaller,
  botId: string,
  item: unknown,
  at: string,
): Resource {
  if (!isObject(item)) throw badRequest(`${at} must be an object`, at)
  const outcome = requireText(item, 'outcome', at)
  if (!OUTCOMES.includes(outcome)) {
    throw badRequest(`outcome must be one of ${OUTCOMES.join(', ')}`, `${at}.outcome`)
  }
  const detail = [
    ['card', requireText(item, 'card', at)],
    ['outcome', outcome],
    ['outcomeTimestamp', requireInstant(item, at)],
    ...readSuggestions(item, outcome, at),
    ...readOverride(item, at),
  ].map(([type, valueString]) => ({ type, valueString }))
  const entity = { what: { reference: `Bot/${botId}` }, detail }
  return {
    ...restEvent(principal, principal.project, 'operation', entity),
    extension: [tracingExtension(request)],
    subtype: [{ system: 'https://cds-hooks.hl7.org', code: 'feedback' }],
    action: 'C',
    outcomeDesc: `A card was ${outcome}`,
  }
}

function readSuggestions(item: Parts, outcome: string, at: string): readonly string[][] {
  const place = `${at}.acceptedSuggestions`
  const { acceptedSuggestions: accepted = [] } = item
  if (!Array.isArray(accepted)) throw badRequest('acceptedSuggestions must be a list', place)
  if (outcome === 'accepted' && accepted.length === 0) {
    throw badRequest('An accepted card must have acceptedSuggestions', place)
  }
  if (accepted.length > MOST_ITEMS) {
    throw badRequest(`There may be at most ${MOST_ITEMS} acceptedSuggestions`, place)
  }
  return accepted.map((one: unknown, i) => {
    const at = `${place}[${i}]`
    if (!isObject(one)) throw badRequest('An accepted suggestion must be an object', at)
    return ['acceptedSuggestion', requireText(one, 'id', at)]
  })
}

function readOverride({ overrideReason }: Parts, at: string): readonly string[][] {
  const place = `${at}.overrideReason`
  if (overrideReason === undefined) return []
  if (!isObject(overrideReason)) throw badRequest('overrideReason must be an object', place)
  const { reason, userComment } = overrideReason
  if (reason !== undefined && !isObject(reason)) {
    throw badRequest('reason must be a Coding', `${place}.reason`)
  }
  const code = reason === undefined ? [] : [requireText(reason, 'code', `${place}.reason`)]
  const hasSystem = reason?.system !== undefined
  const system = hasSystem ? `${requireText(reason, 'system', `${place}.reason`)}|` : ''
  const comment =
    userComment === undefined ? [] : [requireText(overrideReason, 'userComment', place)]
  return [
    ...code.map((one) => ['overrideReason', `${system}${one}`]),
    ...comment.map((one) => ['userComment', one]),
  ]
}

function requireInstant(item: Parts, at: string): string {
  const text = requireText(item, 'outcomeTimestamp', at)
  if (INSTANT.test(text) && parseDate(text) !== undefined) return text
  throw badRequest('outcomeTimestamp must be an ISO timestamp', `${at}.outcomeTimestamp`)
}

function requireText(parts: Parts, name: string, at: string): string {
  const value = parts[name]
  const place = `${at}.${name}`
  if (typeof value !== 'string' || value.trim() === '') {
    throw badRequest(`${name} must be a text`, place)
  }
  if (value.length > MOST_TEXT) {
    throw badRequest(`${name} may have at most ${MOST_TEXT} characters`, place)
  }
  return value
}
