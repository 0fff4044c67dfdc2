/**
 * A Bot as a service of CDS Hooks, by the element `Bot.cdsService` or by the extension `bot-cds-hook` with the same
 * parts. https://cds-hooks.hl7.org/2.0/
 */
import { badRequest } from '../core/errors.ts'
import {
  botExtension,
  type ElementText,
  extensionParts,
  type FoundExtension,
  partText,
} from './bot-extensions.ts'
import { isResourceType } from './definitions.ts'
import { isObject, type Resource, toObjects } from './resource.ts'

export interface CdsService {
  readonly hook: string
  readonly title: string
  readonly description: string
  readonly usageRequirements?: string
  /** FHIR queries with prefetch tokens, by key. */
  readonly prefetch?: Readonly<Record<string, string>>
}

/** `{{context.patientId}}` or one of the user's ids: https://cds-hooks.hl7.org/2.0/#prefetch-tokens */
export const PREFETCH_TOKEN =
  /\{\{(?:context\.(\w+)|user(Practitioner|PractitionerRole|Patient|RelatedPerson)Id)\}\}/g

const HOOK = /^[A-Za-z0-9._-]{1,100}$/
const KEY = /^[\w.-]{1,64}$/
const MOST_PREFETCH = 20
const MOST_QUERY = 2000
const PARTS = ['hook', 'title', 'description', 'usageRequirements', 'prefetch'] as const
const PREFETCH_PARTS = ['key', 'query'] as const

interface Found {
  readonly hook: ElementText | undefined
  readonly title: ElementText | undefined
  readonly description: ElementText | undefined
  readonly usageRequirements: ElementText | undefined
  readonly prefetch: readonly FoundPrefetch[]
  readonly expression: string
}

interface FoundPrefetch {
  readonly key: ElementText | undefined
  readonly query: ElementText | undefined
  readonly expression: string
}

/** Returns undefined for other Bots. Errors: 400 with the element at fault. */
export function parseCdsService(bot: Resource): CdsService | undefined {
  const extension = botExtension(bot, 'cds-hook')
  const element = bot.cdsService
  if (extension !== undefined && element !== undefined) {
    throw badRequest('Use either cdsService or bot-cds-hook', extension.expression)
  }
  if (extension !== undefined) return checked(readExtension(extension))
  return isObject(element) ? checked(readElement(element)) : undefined
}

function readExtension(found: FoundExtension): Found {
  const parts = extensionParts(found, PARTS)
  const prefetch = (parts.get('prefetch') ?? []).map((one) => {
    const own = extensionParts(one, PREFETCH_PARTS)
    const { expression } = one
    return { key: partText(own, 'key'), query: partText(own, 'query'), expression }
  })
  return {
    hook: partText(parts, 'hook'),
    title: partText(parts, 'title'),
    description: partText(parts, 'description'),
    usageRequirements: partText(parts, 'usageRequirements'),
    prefetch,
    expression: found.expression,
  }
}

function readElement(element: Readonly<Record<string, unknown>>): Found {
  const expression = 'Bot.cdsService'
  return {
    hook: textIn(element, 'hook', expression),
    title: textIn(element, 'title', expression),
    description: textIn(element, 'description', expression),
    usageRequirements: textIn(element, 'usageRequirements', expression),
    prefetch: toObjects(element.prefetch).map((one, index) => {
      const at = `${expression}.prefetch[${index}]`
      return { key: textIn(one, 'key', at), query: textIn(one, 'query', at), expression: at }
    }),
    expression,
  }
}

function textIn(
  parts: Readonly<Record<string, unknown>>,
  name: string,
  expression: string,
): ElementText | undefined {
  const text = parts[name]
  return typeof text === 'string' ? { text, expression: `${expression}.${name}` } : undefined
}

function checked({ expression, usageRequirements, ...found }: Found): CdsService {
  const hook = required(found.hook, 'hook', expression)
  if (!HOOK.test(hook.text)) {
    throw badRequest('hook must be the name of a hook, such as patient-view', hook.expression)
  }
  const title = required(found.title, 'title', expression)
  const prefetch = checkPrefetch(found.prefetch)
  return {
    hook: hook.text,
    title: title.text,
    // Clients expect one, and the title describes the service in short.
    description: found.description?.text ?? title.text,
    ...(usageRequirements === undefined ? {} : { usageRequirements: usageRequirements.text }),
    ...(prefetch.size === 0 ? {} : { prefetch: Object.fromEntries(prefetch) }),
  }
}

function required(text: ElementText | undefined, name: string, expression: string): ElementText {
  if (text !== undefined) return text
  throw badRequest(`A service of CDS Hooks must have a ${name}`, expression)
}

function checkPrefetch(templates: readonly FoundPrefetch[]): ReadonlyMap<string, string> {
  const found = new Map<string, string>()
  for (const { expression, ...parts } of templates) {
    const key = required(parts.key, 'key', expression)
    const query = required(parts.query, 'query', expression)
    if (!KEY.test(key.text)) {
      throw badRequest(
        'A prefetch key must have 1 to 64 letters, digits, _, . and -',
        key.expression,
      )
    }
    if (found.has(key.text)) throw badRequest('Prefetch keys must differ', key.expression)
    const problem = queryProblem(query.text)
    if (problem !== undefined) throw badRequest(problem, query.expression)
    found.set(key.text, query.text)
    if (found.size > MOST_PREFETCH) {
      throw badRequest(`There may be at most ${MOST_PREFETCH} prefetch templates`, expression)
    }
  }
  return found
}

/** A read or a search of a type: https://cds-hooks.hl7.org/2.0/#prefetch-template */
function queryProblem(query: string): string | undefined {
  if (query.length > MOST_QUERY) return `A prefetch query may have at most ${MOST_QUERY} characters`
  const plain = query.replaceAll(PREFETCH_TOKEN, '0')
  if (/\{\{|\}\}/.test(plain)) {
    return 'A prefetch token must be {{context.name}} or an id of the user, such as {{userPractitionerId}}'
  }
  // A reference such as {{context.userId}} has type and id.
  if (plain === '0') return undefined
  const [, type = '', id, search] = /^([A-Za-z]+)(?:\/([^/?]+))?(\?.*)?$/.exec(plain) ?? []
  const isOne = (id === undefined) !== (search === undefined)
  if (isResourceType(type) && isOne && !id?.startsWith('$')) return undefined
  return 'A prefetch query must read a resource or search a type, such as Patient/{{context.patientId}}'
}
