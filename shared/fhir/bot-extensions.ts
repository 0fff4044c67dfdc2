/** Extensions of a Bot that configure its runs. */
import { badRequest } from '../core/errors.ts'
import { asArray, isObject, type Resource } from './resource.ts'

/** URL prefix that every server writes. */
export const BOT_EXTENSION = 'urn:botica:bot-'
const NAMES = [
  'cds-hook',
  'concurrencyKey',
  'concurrent',
  'cpuMs',
  'cron-overlap',
  'cron-timezone',
  'debounce',
  'fresh',
  'host',
  'keyConcurrency',
  'label',
  'maxConcurrency',
  'maxQueueSeconds',
  'memoryMb',
  'rate',
  'rateQueue',
  'retry',
  'secret',
  'tool',
] as const
/** Accepted prefixes: the URN, any server's base URL. Medplum's own extensions are left alone. */
const ADDRESS = /(?:^urn:botica:|\/fhir\/StructureDefinition\/)bot-([^/]*)$/
const PEER = 'https://medplum.com/'

/** The others may be given once. */
const SEVERAL: ReadonlySet<BotExtension> = new Set(['host', 'label', 'secret'])
const FLAGS = ['concurrent', 'fresh'] as const

export type BotExtension = (typeof NAMES)[number]

export const botExtensionNames: readonly string[] = NAMES

export interface FoundExtension {
  readonly item: Readonly<Record<string, unknown>>
  readonly expression: string
}

export function botExtension(bot: Resource, name: BotExtension): FoundExtension | undefined {
  return botExtensions(bot, name)[0]
}

export function botExtensions(bot: Resource, name: BotExtension): readonly FoundExtension[] {
  return listExtensions(bot).filter(({ item }) => extensionName(item.url) === name)
}

/** Errors: 400 for an unknown name under one of the prefixes, for a repeated extension, and for a flag of another type. */
export function checkBotExtensions(bot: Resource): void {
  for (const { item, expression } of listExtensions(bot)) {
    const name = extensionName(item.url)
    if (name === undefined || botExtensionNames.includes(name)) continue
    if (String(item.url).startsWith(PEER)) continue
    const known = NAMES.map((one) => `bot-${one}`).join(', ')
    throw badRequest(
      `There is no extension bot-${name.slice(0, 50)}: there are ${known}`,
      expression,
    )
  }
  for (const name of NAMES) {
    const [, second] = SEVERAL.has(name) ? [] : botExtensions(bot, name)
    if (second !== undefined) {
      throw badRequest(`bot-${name} may be given once`, second.expression)
    }
  }
  for (const name of FLAGS) {
    const found = botExtension(bot, name)
    if (found !== undefined && typeof found.item.valueBoolean !== 'boolean') {
      throw badRequest(`bot-${name} must be true or false, as valueBoolean`, found.expression)
    }
  }
}

/** Returns the parts of an extension that has extensions, by their URL. Errors: 400 for an unknown or repeated one. */
export function extensionParts<Name extends string>(
  { item, expression }: FoundExtension,
  names: readonly Name[],
): ReadonlyMap<Name, readonly FoundExtension[]> {
  const parts = new Map<Name, FoundExtension[]>()
  for (const [index, part] of asArray(item.extension).entries()) {
    const at = `${expression}.extension[${index}]`
    const name = names.find((one) => isObject(part) && part.url === one)
    if (name === undefined || !isObject(part)) {
      throw badRequest(`The parts of this extension are ${names.join(', ')}`, `${at}.url`)
    }
    parts.set(name, [...(parts.get(name) ?? []), { item: part, expression: at }])
  }
  return parts
}

export interface ElementText {
  readonly text: string
  readonly expression: string
}

/** Returns the text of a part that occurs once; undefined without it. Errors: 400. */
export function partText<Name extends string>(
  parts: ReadonlyMap<Name, readonly FoundExtension[]>,
  name: Name,
): ElementText | undefined {
  const [part, second] = parts.get(name) ?? []
  if (part === undefined) return undefined
  if (second !== undefined) throw badRequest(`There must be one ${name}`, second.expression)
  const { valueString, valueCode, valueMarkdown } = part.item
  const text = valueString ?? valueCode ?? valueMarkdown
  if (typeof text !== 'string' || text.trim() === '') {
    throw badRequest(`${name} must have a valueString`, part.expression)
  }
  return { text, expression: part.expression }
}

export function isBotExtension(item: unknown): boolean {
  return isObject(item) && extensionName(item.url) !== undefined
}

function extensionName(url: unknown): string | undefined {
  return typeof url === 'string' ? ADDRESS.exec(url)?.[1] : undefined
}

function listExtensions({ extension }: Resource): readonly FoundExtension[] {
  return asArray(extension).flatMap((item, index) =>
    isObject(item) ? [{ item, expression: `Bot.extension[${index}]` }] : [],
  )
}
