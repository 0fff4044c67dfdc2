/** Extensions of a Bot that configure its runs. */
import { badRequest } from '../core/errors.ts'
import { isObject, type Resource } from './resource.ts'

/** URL prefix that every server writes. */
export const BOT_EXTENSION = 'urn:botica:bot-'
const NAMES = [
  'concurrent',
  'cpuMs',
  'cron-overlap',
  'cron-timezone',
  'fresh',
  'maxConcurrency',
  'maxQueueSeconds',
  'memoryMb',
  'retry',
] as const
/** Accepted prefixes: the URN, any server's base URL. Medplum's own extensions are left alone. */
const ADDRESS = /(?:^urn:botica:|\/fhir\/StructureDefinition\/)bot-([^/]*)$/
const PEER = 'https://medplum.com/'

export type BotExtension = (typeof NAMES)[number]

export const botExtensionNames: readonly string[] = NAMES

export interface FoundExtension {
  readonly item: Readonly<Record<string, unknown>>
  readonly expression: string
}

export function botExtension(bot: Resource, name: BotExtension): FoundExtension | undefined {
  return listExtensions(bot).find(({ item }) => extensionName(item.url) === name)
}

/** Errors: 400 for an unknown name under one of the prefixes. */
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
}

export function isBotExtension(item: unknown): boolean {
  return isObject(item) && extensionName(item.url) !== undefined
}

function extensionName(url: unknown): string | undefined {
  return typeof url === 'string' ? ADDRESS.exec(url)?.[1] : undefined
}

function listExtensions({ extension }: Resource): readonly FoundExtension[] {
  const items: readonly unknown[] = Array.isArray(extension) ? extension : []
  return items.flatMap((item, index) =>
    isObject(item) ? [{ item, expression: `Bot.extension[${index}]` }] : [],
  )
}
