/** Which addresses may be reached under BOT_FETCH=public and HOOK_TARGETS=public. */
import { BlockList, isIP, isIPv4 } from 'node:net'

type Range = readonly [network: string, prefix: number]

// https://www.iana.org/assignments/iana-ipv4-special-registry
const SPECIAL_4 = listOf('ipv4', [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  // Shared address space; the metadata of Alibaba Cloud is 100.100.100.200.
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  // Link-local; the metadata of AWS, Azure, Google and Oracle is 169.254.169.254.
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  // The metadata of Oracle's older machines is 192.0.0.192.
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
  // The platform of an Azure machine answers here, though the address is of the public kind.
  ['168.63.129.16', 32],
])

/** Global unicast. All else, mapped and translated IPv4 addresses and NAT64 among it, is private. */
const GLOBAL_6 = listOf('ipv6', [['2000::', 3]])

// https://www.iana.org/assignments/iana-ipv6-special-registry, as far as it lies within 2000::/3
const SPECIAL_6 = listOf('ipv6', [
  // Protocol assignments, Teredo among them, which carries an IPv4 address.
  ['2001::', 23],
  ['2001:db8::', 32],
  // 6to4 carries an IPv4 address.
  ['2002::', 16],
  ['2620:4f:8000::', 48],
  ['3fff::', 20],
])

function listOf(family: 'ipv4' | 'ipv6', ranges: readonly Range[]): BlockList {
  const list = new BlockList()
  for (const [network, prefix] of ranges) list.addSubnet(network, prefix, family)
  return list
}

/** False for loopback, private, link-local, metadata, multicast and all other special addresses. */
export function isPublicAddress(address: string): boolean {
  const version = isIP(address)
  if (version === 0 || address.includes('%')) return false
  if (version === 4) return !SPECIAL_4.check(address, 'ipv4')
  return GLOBAL_6.check(address, 'ipv6') && !SPECIAL_6.check(address, 'ipv6')
}

/** Groups of an IPv6 address that are fixed, and where the IPv4 address begins that follows or is inverted. */
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

/** The IPv4 address that an IPv6 address stands for; undefined for one that carries none. */
export function carriedAddress(address: string): string | undefined {
  if (isIP(address) !== 6) return undefined
  const groups = groupsOf(address)
  const carrier = CARRIERS.find(({ start }) => start.every((group, i) => groups[i] === group))
  if (carrier === undefined) return undefined
  const { at, isInverted = false } = carrier
  const pair = groups.slice(at, at + 2).map((group) => (isInverted ? group ^ 0xffff : group))
  return pair.flatMap((group) => [group >> 8, group & 0xff]).join('.')
}

/** Eight numbers of 16 bits. */
function groupsOf(address: string): readonly number[] {
  const plain = address.replace(/%.*$/, '')
  const [head = '', tail] = plain.split('::').map(halfOf)
  const before = head === '' ? [] : head.split(':')
  const after = tail === undefined || tail === '' ? [] : tail.split(':')
  const zeros = Array<string>(8 - before.length - after.length).fill('0')
  return [...before, ...zeros, ...after].map((group) => Number.parseInt(group, 16))
}

/** An IPv4 address at the end is two groups. */
function halfOf(half: string): string {
  const last = half.slice(half.lastIndexOf(':') + 1)
  if (!isIPv4(last)) return half
  const [a = 0, b = 0, c = 0, d = 0] = last.split('.').map(Number)
  const groups = [a * 256 + b, c * 256 + d].map((group) => group.toString(16)).join(':')
  return half.slice(0, half.length - last.length) + groups
}
