/** CDS Hooks 2.0 with Bots as services: discovery, calls and feedback. https://cds-hooks.hl7.org/2.0/ */

import type { Principal } from '../../shared/access/principal.ts'
import { findBot, resolveRunAs } from '../../shared/bots/bot.ts'
import {
  type BotCall,
  createJob,
  execute,
  type RunCall,
  runBot,
} from '../../shared/bots/execute.ts'
import { listCdsServices, type OfferedService } from '../../shared/bots/offers.ts'
import { attempt, badRequest, badStructure, notFound, tooLarge } from '../../shared/core/errors.ts'
import { parseJson } from '../../shared/fhir/json.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import { charge, SEARCH } from '../../shared/request/quota.ts'
import { fhirBases } from '../../shared/request/reply.ts'
import type { FhirReply, FhirRequest } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import { parseJsonBody } from '../http/body.ts'
import { storeFeedback } from './feedback.ts'
import { type CdsCaller, resolvePrefetch } from './prefetch.ts'

type Parts = Readonly<Record<string, unknown>>

const JSON_TYPE = 'application/json; charset=utf-8'

/** The body of `GET /cds-services`: the services that the caller may call. */
export async function describeServices(services: Services, principal: Principal): Promise<object> {
  const offered = await listCdsServices(services, principal)
  return { services: offered.map(({ botId, ...service }) => ({ id: botId, ...service })) }
}

/** Answers `POST /cds-services/{id}` and `/feedback` below it. Errors: 400, 404, 413, those of `$execute`. */
export async function answerCds(
  services: Services,
  principal: Principal,
  request: FhirRequest,
): Promise<FhirReply> {
  const [, id, feedback] = request.path.split('/')
  const caller = { services, principal, request }
  const offered = await listCdsServices(services, principal)
  const service = offered.find(({ botId }) => botId === id)
  if (service === undefined) throw notFound()
  const body = parseJsonBody(request.body, request.headers['content-type'] ?? '')
  if (!isObject(body)) throw badStructure('Content must be a JSON object')
  if (feedback === undefined) return await callService(caller, service, body)
  await charge(services, principal, { request, units: SEARCH })
  await storeFeedback(caller, service.botId, body)
  return { status: 200, headers: { 'Content-Type': JSON_TYPE }, body: '{}' }
}

async function callService(
  caller: CdsCaller,
  service: OfferedService,
  body: Parts,
): Promise<FhirReply> {
  const { services, principal, request } = caller
  const { context, prefetch } = checkCall(service, body)
  const item = await charge(services, principal, { request, units: SEARCH })
  const missing = Object.entries(service.prefetch ?? {}).filter(
    ([key]) => !Object.hasOwn(prefetch, key),
  )
  const resolved = isOurs(caller, body.fhirServer)
    ? await resolvePrefetch(caller, Object.fromEntries(missing), context)
    : {}
  const text = JSON.stringify({ ...body, prefetch: { ...prefetch, ...resolved } })
  if (text.length > services.config.maxBodyBytes) throw tooLarge()
  const call: BotCall & RunCall = {
    operation: execute,
    services,
    principal,
    // Clients wait for cards, even if they prefer otherwise elsewhere.
    request: {
      ...request,
      path: `Bot/${service.botId}/$execute`,
      headers: { ...request.headers, prefer: undefined },
    },
    type: 'Bot',
    id: service.botId,
    rest: '',
    input: { kind: 'json', text },
    mustAnswer: true,
  }
  const found = await findBot(call)
  const acting = await resolveRunAs(services, principal, found)
  const reply = await runBot(call, createJob(call, found, acting), found)
  const headers = item === undefined ? reply.headers : { RateLimit: item, ...reply.headers }
  if (reply.status !== 200) return { ...reply, headers }
  const { body: answer } = reply
  checkAnswer(typeof answer === 'string' ? attempt(() => parseJson(answer)) : undefined)
  return { ...reply, headers: { ...headers, 'Content-Type': JSON_TYPE } }
}

/** https://cds-hooks.hl7.org/2.0/#calling-a-cds-service. Errors: 400 with the field. */
function checkCall({ hook }: OfferedService, body: Parts) {
  if (body.hook !== hook) throw badRequest(`hook must be ${hook}, the hook of this service`, 'hook')
  if (typeof body.hookInstance !== 'string' || body.hookInstance === '') {
    throw badRequest('hookInstance must be a text', 'hookInstance')
  }
  const { context, prefetch = {}, fhirServer, fhirAuthorization } = body
  if (!isObject(context)) throw badRequest('context must be an object', 'context')
  if (!isObject(prefetch)) throw badRequest('prefetch must be an object', 'prefetch')
  if (fhirServer !== undefined && !(typeof fhirServer === 'string' && URL.canParse(fhirServer))) {
    throw badRequest('fhirServer must be a URL', 'fhirServer')
  }
  if (fhirAuthorization !== undefined && !isObject(fhirAuthorization)) {
    throw badRequest('fhirAuthorization must be an object', 'fhirAuthorization')
  }
  if (fhirAuthorization !== undefined && fhirServer === undefined) {
    throw badRequest('fhirAuthorization needs a fhirServer', 'fhirServer')
  }
  return { context, prefetch }
}

/** The ids of another server's context mean nothing here. */
function isOurs({ services, principal }: CdsCaller, fhirServer: unknown): boolean {
  if (typeof fhirServer !== 'string') return true
  const base = fhirServer.endsWith('/') ? fhirServer : `${fhirServer}/`
  return fhirBases(services, principal.project.id).includes(base)
}

// The Bot's answer: https://cds-hooks.hl7.org/2.0/#cds-service-response

const MOST_SUMMARY = 139
const INDICATORS = ['info', 'warning', 'critical']
const BEHAVIORS = ['at-most-one', 'any']
const ACTIONS = ['create', 'update', 'delete']
const LINKS = ['absolute', 'smart']

/** Errors: 400 with the place in the answer. */
function checkAnswer(answer: unknown): void {
  const parts = requireParts(answer, 'The answer of the bot')
  for (const [card, at] of listed(parts, 'cards', '', true)) checkCard(card, at)
  for (const [action, at] of listed(parts, 'systemActions', '')) checkAction(action, at, false)
}

function checkCard(card: Parts, at: string): void {
  const summary = requireText(card, 'summary', at)
  if ([...summary].length > MOST_SUMMARY) {
    throw invalidCards(`${at}.summary`, `must have at most ${MOST_SUMMARY} characters`)
  }
  requireChoice(card, 'indicator', INDICATORS, at)
  requireText(requireParts(card.source, `${at}.source`), 'label', `${at}.source`)
  const suggestions = listed(card, 'suggestions', at)
  if (suggestions.length > 0) requireChoice(card, 'selectionBehavior', BEHAVIORS, at)
  for (const [suggestion, place] of suggestions) {
    requireText(suggestion, 'label', place)
    for (const [action, inside] of listed(suggestion, 'actions', place)) {
      checkAction(action, inside, true)
    }
  }
  for (const [reason, place] of listed(card, 'overrideReasons', at)) {
    requireText(reason, 'display', place)
  }
  for (const [link, place] of listed(card, 'links', at)) {
    requireText(link, 'label', place)
    requireText(link, 'url', place)
    requireChoice(link, 'type', LINKS, place)
  }
}

/** The description of a system action, which no user sees, may be missing. */
function checkAction(action: Parts, at: string, isShown: boolean): void {
  requireChoice(action, 'type', ACTIONS, at)
  if (isShown) requireText(action, 'description', at)
  if (action.type !== 'delete') requireParts(action.resource, `${at}.resource`)
}

function listed(
  parts: Parts,
  name: string,
  at: string,
  isRequired = false,
): readonly (readonly [Parts, string])[] {
  const place = at === '' ? name : `${at}.${name}`
  const value = parts[name]
  if (value === undefined && !isRequired) return []
  if (!Array.isArray(value)) throw invalidCards(place, 'must be a list')
  return value.map((item, i) => [requireParts(item, `${place}[${i}]`), `${place}[${i}]`])
}

function requireParts(value: unknown, at: string): Parts {
  if (isObject(value)) return value
  throw invalidCards(at, 'must be an object')
}

function requireText(parts: Parts, name: string, at: string): string {
  const value = parts[name]
  if (typeof value === 'string' && value.trim() !== '') return value
  throw invalidCards(`${at}.${name}`, 'must be a text')
}

function requireChoice(parts: Parts, name: string, values: readonly string[], at: string): void {
  if (values.some((value) => value === parts[name])) return
  throw invalidCards(`${at}.${name}`, `must be one of ${values.join(', ')}`)
}

function invalidCards(at: string, text: string) {
  return badRequest(`The bot must return cards of CDS Hooks: ${at} ${text}`, at)
}
