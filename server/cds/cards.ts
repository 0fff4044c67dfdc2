/** Checks a Bot's answer to a CDS Hooks client. https://cds-hooks.hl7.org/2.0/#cds-service-response */
import { badRequest } from '../../shared/core/errors.ts'
import { isObject } from '../../shared/fhir/resource.ts'

type Parts = Readonly<Record<string, unknown>>

const MOST_SUMMARY = 139
const INDICATORS = ['info', 'warning', 'critical']
const BEHAVIORS = ['at-most-one', 'any']
const ACTIONS = ['create', 'update', 'delete']
const LINKS = ['absolute', 'smart']

/** Errors: 400 with the place in the answer. */
export function checkAnswer(answer: unknown): void {
  const parts = requireParts(answer, 'The answer of the bot')
  for (const [card, at] of listed(parts, 'cards', '', true)) checkCard(card, at)
  for (const [action, at] of listed(parts, 'systemActions', '')) checkAction(action, at, false)
}

function checkCard(card: Parts, at: string): void {
  const summary = requireText(card, 'summary', at)
  if ([...summary].length > MOST_SUMMARY) {
    throw wrong(`${at}.summary`, `must have at most ${MOST_SUMMARY} characters`)
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
  if (!Array.isArray(value)) throw wrong(place, 'must be a list')
  return value.map((item, i) => [requireParts(item, `${place}[${i}]`), `${place}[${i}]`])
}

function requireParts(value: unknown, at: string): Parts {
  if (isObject(value)) return value
  throw wrong(at, 'must be an object')
}

function requireText(parts: Parts, name: string, at: string): string {
  const value = parts[name]
  if (typeof value === 'string' && value.trim() !== '') return value
  throw wrong(`${at}.${name}`, 'must be a text')
}

function requireChoice(parts: Parts, name: string, values: readonly string[], at: string): void {
  if (values.some((value) => value === parts[name])) return
  throw wrong(`${at}.${name}`, `must be one of ${values.join(', ')}`)
}

function wrong(at: string, text: string) {
  return badRequest(`The bot must return cards of CDS Hooks: ${at} ${text}`, at)
}
