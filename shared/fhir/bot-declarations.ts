/** The secrets that a Bot may read and the hosts that it may call: its extensions `bot-secret` and `bot-host`. */
import { type HostRule, isNamedHost, readHostRule } from '../core/config/outbound.ts'
import { badRequest, forbiddenByPlatform } from '../core/errors.ts'
import { botExtensions } from './bot-extensions.ts'
import type { Resource } from './resource.ts'

export interface BotDeclarations {
  /** All secrets of its Project if undefined. */
  readonly secrets: ReadonlySet<string> | undefined
  /** All hosts that the service permits if undefined. */
  readonly hosts: BotHosts | undefined
}

interface BotHosts {
  readonly rules: readonly HostRule[]
  /** True: may mail any address. */
  readonly mailsAnyone: boolean
}

/** Value of `bot-host` that permits mail to any address. */
const ANY_MAIL = 'mailto:*'

/**
 * Returns the secrets and hosts that the Bot names; undefined without limits. If `isRequired`, a Bot that names no
 * secrets has none, and one that names no hosts calls none.
 */
export function readDeclarations(bot: Resource, isRequired: boolean): BotDeclarations | undefined {
  const [secrets, hosts] = [namedValues(bot, 'secret'), namedValues(bot, 'host')]
  if (!isRequired && secrets.length === 0 && hosts.length === 0) return undefined
  return {
    secrets: isRequired || secrets.length > 0 ? new Set(secrets) : undefined,
    hosts: isRequired || hosts.length > 0 ? parseHosts(hosts) : undefined,
  }
}

/** Errors: 400 with the element at fault. */
export function checkDeclarations(bot: Resource): void {
  for (const { item, expression } of botExtensions(bot, 'secret')) {
    if (typeof item.valueString === 'string' && item.valueString.trim() !== '') continue
    throw badRequest('bot-secret must be the name of a secret, as valueString', expression)
  }
  for (const { item, expression } of botExtensions(bot, 'host')) {
    const { valueString: text } = item
    if (text === ANY_MAIL) continue
    if (typeof text === 'string' && readHostRule(text) !== undefined) continue
    const forms = `example.org, *.example.org, example.org:8443, 192.0.2.0/24 or ${ANY_MAIL}`
    throw badRequest(`bot-host must be such as ${forms}, as valueString`, expression)
  }
}

/** `port`: undefined for any. Errors: 403. */
export function requireNamedHost(
  { hosts }: Pick<BotDeclarations, 'hosts'>,
  host: string,
  port: string | undefined,
): void {
  if (hosts === undefined || isNamedHost(hosts.rules, host, port)) return
  throw forbiddenByPlatform(`${host} is not among the hosts that the Bot names`)
}

/** Errors: 403 for an address whose domain is not among the hosts. */
export function requireNamedMail(declared: BotDeclarations | undefined, address: string): void {
  if (declared === undefined || declared.hosts?.mailsAnyone === true) return
  requireNamedHost(declared, address.slice(address.lastIndexOf('@') + 1), undefined)
}

function parseHosts(values: readonly string[]): BotHosts {
  return {
    rules: values.flatMap((text) => readHostRule(text) ?? []),
    mailsAnyone: values.includes(ANY_MAIL),
  }
}

function namedValues(bot: Resource, name: 'secret' | 'host'): readonly string[] {
  return botExtensions(bot, name).map(({ item }) => String(item.valueString ?? ''))
}
