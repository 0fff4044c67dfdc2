/** Extensions of a Bot that say how it runs: their addresses and names. */
import { badRequest } from '../core/errors.ts'
import { isObject, type Resource } from './resource.ts'

/** The address, wherever the service is. */
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
/** Other spellings: below the address of any service, and of the peer, whose own names are left to it. */
const ADDRESS = /(?:^urn:botica:|\/fhir\/StructureDefinition\/)bot-([^/]*)$/
const PEER = 'https://medplum.com/'

export type BotExtension = (typeof NAMES)[number]

export const botExtensionNames: readonly string[] = NAMES

export interface FoundExtension {
  readonly item: Readonly<Record<string, unknown>>
  readonly expression: string
}

/** The extension of that name, in whatever spelling. */
export function botExtension(bot: Resource, name: BotExtension): FoundExtension | undefined {
  return listExtensions(bot).find(({ item }) => extensionName(item.url) === name)
}

/** Errors: 400 for an extension that has the address of these and none of their names. */
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

/** True for an extension with an address of these, in any spelling. */
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
