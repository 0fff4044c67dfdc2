/** Rules for addresses that the service may call on behalf of callers, and address blocks that are never allowed. */
import { BlockList, isIP } from 'node:net'
import ipaddr from 'ipaddr.js'

type Reach = 'off' | 'public' | 'all'

export interface Outbound {
  readonly reach: Reach
  /** Allowlist; empty: all hosts. */
  readonly only: readonly HostRule[]
  /** Denylist, which overrides every other rule. */
  readonly never: readonly HostRule[]
  /** Second allowlist, that of a Bot; undefined: all hosts. It permits nothing that the other rules block. */
  readonly named?: readonly HostRule[] | undefined
  /** Ports that need no rule at public addresses; default those of HTTP. */
  readonly ports?: ReadonlySet<string>
  readonly userAgent: string
}

/** A host and its subdomains, or an address range; for one port or all. */
export interface HostRule {
  readonly host: string | undefined
  readonly isBelow: boolean
  readonly range: BlockList | undefined
  readonly port: string | undefined
}

export const UNRESTRICTED: Outbound = { reach: 'all', only: [], never: [], userAgent: 'Botica' }

const PUBLIC_PORTS = new Set(['', '80', '443'])
const RULE = /^(\*\.)?(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::(\d{1,5}))?$/i

/** Parses `*.example.org`, `example.org:8443`, `10.1.2.3`, `10.0.0.0/8` or `fd00::/8`; undefined if invalid. */
export function readHostRule(text: string): HostRule | undefined {
  const whole = parseRange(text)
  if (whole !== undefined) return { host: undefined, isBelow: false, range: whole, port: undefined }
  const [, below, name = '', port] = RULE.exec(text) ?? []
  if (name === '') return undefined
  const range = parseRange(plainHost(name))
  if (range !== undefined) {
    return below === undefined ? { host: undefined, isBelow: false, range, port } : undefined
  }
  if (!URL.canParse(`http://${name}`)) return undefined
  const { hostname } = new URL(`http://${name}`)
  return { host: plainHost(hostname), isBelow: below !== undefined, range: undefined, port }
}

function parseRange(text: string): BlockList | undefined {
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

/** Removes the root dot of a name and the brackets of an IPv6 address. */
export function plainHost(hostname: string): string {
  return hostname.toLowerCase().replace(/^\[|\]$|\.$/g, '')
}

/** Returns the reason for blocking a URL, if any. Before DNS resolution, only definite violations block. */
export function blockedReason(
  { reach, only, never, named, ports = PUBLIC_PORTS }: Outbound,
  url: URL,
  addresses?: readonly string[],
): string | undefined {
  if (reach === 'off') return 'fetch is switched off'
  const host = plainHost(url.hostname)
  const port = url.port || (url.protocol === 'https:' ? '443' : '80')
  if (named !== undefined && !isNamedHost(named, host, port)) {
    return `${host} is not among the hosts that the Bot names`
  }
  const known = isIP(host) === 0 ? addresses : [host]
  const atPort = (rule: HostRule) => rule.port === undefined || rule.port === port
  const isNamed = (rule: HostRule) => atPort(rule) && names(rule, host)
  const holds = (rule: HostRule, address: string) => atPort(rule) && within(rule, address)
  // A gateway (NAT64, 6to4) reaches the embedded address.
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
  if (!ports.has(url.port) && !isListed) return `Port ${url.port} is not allowed`
  return known?.every(isPublicAddress) === false ? `${host} is not a public address` : undefined
}

/** Decides without DNS, so that a name cannot reach an address range, and no undeclared name is resolved. */
export function isNamedHost(
  rules: readonly HostRule[],
  hostname: string,
  port: string | undefined,
): boolean {
  const host = plainHost(hostname)
  return rules.some(
    (rule) =>
      (rule.port === undefined || rule.port === port) &&
      (names(rule, host) || (isIP(host) !== 0 && within(rule, host))),
  )
}

function names({ host: name, isBelow }: HostRule, host: string): boolean {
  if (name === undefined) return false
  return isBelow ? host.endsWith(`.${name}`) : host === name
}

function within({ range }: HostRule, address: string): boolean {
  return range?.check(address, isIP(address) === 4 ? 'ipv4' : 'ipv6') ?? false
}

type Range = readonly [network: string, prefix: number]

// https://www.iana.org/assignments/iana-ipv4-special-registry
const SPECIAL_4 = toBlockList('ipv4', [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  // Shared address space; includes Alibaba Cloud's metadata address 100.100.100.200.
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  // Link-local; includes the metadata address 169.254.169.254 of AWS, Azure, Google and Oracle.
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  // Includes 192.0.0.192, the metadata address of older Oracle machines.
  ['192.0.0.0', 24],
  ['192.0.2.0', 24],
  ['192.31.196.0', 24],
  ['192.52.193.0', 24],
  ['192.88.99.0', 24],
  ['192.168.0.0', 16],
  ['192.175.48.0', 24],
  ['198.18.0.0', 15],
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['224.0.0.0', 3],
  // Azure's platform endpoint, a public address.
  ['168.63.129.16', 32],
])

/** Global unicast. All other ranges count as private, including mapped and translated IPv4 and NAT64. */
const GLOBAL_6 = toBlockList('ipv6', [['2000::', 3]])

// https://www.iana.org/assignments/iana-ipv6-special-registry, within 2000::/3
const SPECIAL_6 = toBlockList('ipv6', [
  // Protocol assignments, including Teredo, which embeds an IPv4 address.
  ['2001::', 23],
  ['2001:db8::', 32],
  // 6to4 embeds an IPv4 address.
  ['2002::', 16],
  ['2620:4f:8000::', 48],
  ['3fff::', 20],
])

function toBlockList(family: 'ipv4' | 'ipv6', ranges: readonly Range[]): BlockList {
  const list = new BlockList()
  for (const [network, prefix] of ranges) list.addSubnet(network, prefix, family)
  return list
}

/** False for loopback, private, link-local, metadata, multicast and other special addresses. */
export function isPublicAddress(address: string): boolean {
  const version = isIP(address)
  if (version === 0 || address.includes('%')) return false
  if (version === 4) return !SPECIAL_4.check(address, 'ipv4')
  return GLOBAL_6.check(address, 'ipv6') && !SPECIAL_6.check(address, 'ipv6')
}

/** Fixed groups of an IPv6 address, and the offset of the embedded, possibly inverted, IPv4 address. */
const CARRIERS: readonly {
  readonly start: readonly number[]
  readonly at: number
  readonly isInverted?: true
}[] = [
  // Compatible, mapped, translated, NAT64 (RFC 6052, RFC 8215), 6to4, Teredo.
  { start: [0, 0, 0, 0, 0, 0], at: 6 },
  { start: [0, 0, 0, 0, 0, 0xffff], at: 6 },
  { start: [0, 0, 0, 0, 0xffff, 0], at: 6 },
  { start: [0x64, 0xff9b, 0, 0, 0, 0], at: 6 },
  { start: [0x64, 0xff9b, 1], at: 6 },
  { start: [0x2002], at: 1 },
  { start: [0x2001, 0], at: 6, isInverted: true },
]

/** Returns the IPv4 address embedded in an IPv6 address; otherwise undefined. */
export function carriedAddress(address: string): string | undefined {
  if (isIP(address) !== 6) return undefined
  // The parser takes fewer zone names than `isIP`.
  const groups = ipaddr.IPv6.parse(address.replace(/%.*$/, '')).parts
  const carrier = CARRIERS.find(({ start }) => start.every((group, i) => groups[i] === group))
  if (carrier === undefined) return undefined
  const { at, isInverted = false } = carrier
  const pair = groups.slice(at, at + 2).map((group) => (isInverted ? group ^ 0xffff : group))
  return pair.flatMap((group) => [group >> 8, group & 0xff]).join('.')
}
