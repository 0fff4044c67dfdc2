/** The addresses that the service may call on behalf of others: the rules that a deployment sets. */
import { BlockList, isIP } from 'node:net'
import { carriedAddress, isPublicAddress } from './addresses.ts'

export type Reach = 'off' | 'public' | 'all'

export interface Outbound {
  readonly reach: Reach
  /** Nobody else may be called; empty: anybody. */
  readonly only: readonly HostRule[]
  /** Whatever else allows it. */
  readonly never: readonly HostRule[]
  /** How calls name the service. */
  readonly userAgent: string
}

/** A host with those below it, or a range of addresses; at one port or at all. */
export interface HostRule {
  readonly host: string | undefined
  readonly isBelow: boolean
  readonly range: BlockList | undefined
  readonly port: string | undefined
}

/** For what runs on a developer's machine. */
export const EVERYWHERE: Outbound = { reach: 'all', only: [], never: [], userAgent: 'Botica' }

const PUBLIC_PORTS = new Set(['', '80', '443'])
const RULE = /^(\*\.)?(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(\d{1,5}))?$/i

/** `example.org`, `*.example.org`, `example.org:8443`, `10.1.2.3`, `10.0.0.0/8`, `fd00::/8`; undefined for what is none. */
export function readHostRule(text: string): HostRule | undefined {
  const whole = rangeOf(text)
  if (whole !== undefined) return { host: undefined, isBelow: false, range: whole, port: undefined }
  const [, below, name = '', port] = RULE.exec(text) ?? []
  if (name === '') return undefined
  const range = rangeOf(plainHost(name))
  if (range !== undefined) {
    return below === undefined ? { host: undefined, isBelow: false, range, port } : undefined
  }
  if (!URL.canParse(`http://${name}`)) return undefined
  const { hostname } = new URL(`http://${name}`)
  return { host: plainHost(hostname), isBelow: below !== undefined, range: undefined, port }
}

/** The range of an address or of `<address>/<bits>`. */
function rangeOf(text: string): BlockList | undefined {
  const [address = '', bits] = text.split('/')
  const version = isIP(address)
  if (version === 0) return undefined
  const most = version === 4 ? 32 : 128
  const prefix = bits === undefined ? most : Number(bits)
  if (!/^\d{0,3}$/.test(bits ?? '') || prefix > most) return undefined
  const range = new BlockList()
  range.addSubnet(address, prefix, version === 4 ? 'ipv4' : 'ipv6')
  return range
}

/** A name without the dot of the root, an IPv6 address without its brackets. */
export function plainHost(hostname: string): string {
  return hostname.toLowerCase().replace(/^\[|\]$|\.$/g, '')
}

/**
 * Why an address may not be called; undefined when it may. `addresses` are those of its host; while nobody has
 * asked for them only what is certain is refused.
 */
export function refusalOf(
  { reach, only, never }: Outbound,
  url: URL,
  addresses?: readonly string[],
): string | undefined {
  if (reach === 'off') return 'fetch is switched off'
  const host = plainHost(url.hostname)
  const port = url.port || (url.protocol === 'https:' ? '443' : '80')
  const known = isIP(host) === 0 ? addresses : [host]
  const atPort = (rule: HostRule) => rule.port === undefined || rule.port === port
  const isNamed = (rule: HostRule) => atPort(rule) && names(rule, host)
  const holds = (rule: HostRule, address: string) => atPort(rule) && within(rule, address)
  // A gateway leads to the address that another one carries.
  const isMeant = (rule: HostRule, address: string) => {
    const carried = carriedAddress(address)
    return holds(rule, address) || (carried !== undefined && holds(rule, carried))
  }
  const isNever = known?.some((address) => never.some((rule) => isMeant(rule, address)))
  if (isNever || never.some(isNamed)) return `${host} is among those that are not called`
  const fitting = only.filter(
    (rule) => isNamed(rule) || (known?.some((address) => holds(rule, address)) ?? atPort(rule)),
  )
  const isOnly =
    fitting.some(isNamed) ||
    (known?.every((address) => fitting.some((rule) => holds(rule, address))) ??
      fitting.some(({ range }) => range !== undefined))
  if (only.length > 0 && !isOnly) return `${host} is not among those that are called`
  if (reach === 'all') return undefined
  const isListed = fitting.some((rule) => rule.port !== undefined)
  if (!PUBLIC_PORTS.has(url.port) && !isListed) return `Port ${url.port} is not allowed`
  return known?.every(isPublicAddress) === false ? `${host} is not a public address` : undefined
}

function names({ host: name, isBelow }: HostRule, host: string): boolean {
  if (name === undefined) return false
  return isBelow ? host.endsWith(`.${name}`) : host === name
}

function within({ range }: HostRule, address: string): boolean {
  return range?.check(address, isIP(address) === 4 ? 'ipv4' : 'ipv6') ?? false
}
