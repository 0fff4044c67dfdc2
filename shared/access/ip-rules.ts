/** `ipAccessRule` of policies: from where a member may ask. The first rule that fits decides; none allows. */
import { BlockList, isIP, isIPv4 } from 'node:net'
import { isObject, type Resource } from '../fhir/resource.ts'

export interface IpRule {
  readonly action: 'allow' | 'block'
  readonly matches: (address: string) => boolean
}

/** In the order of the policies. What cannot be read blocks every address. */
export function readIpRules(policies: readonly Resource[]): readonly IpRule[] {
  return policies.flatMap(({ ipAccessRule }) => {
    if (ipAccessRule === undefined) return []
    const items: readonly unknown[] = Array.isArray(ipAccessRule) ? ipAccessRule : [ipAccessRule]
    return items.map((item): IpRule => {
      const { value, action } = isObject(item) ? item : {}
      const matches = typeof value === 'string' ? matcherOf(value.trim()) : undefined
      if (matches === undefined || (action !== 'allow' && action !== 'block')) {
        return { action: 'block', matches: () => true }
      }
      return { action, matches }
    })
  })
}

/** IPv4 addresses in the form of IPv6 count as IPv4. */
export function isAllowedFrom(rules: readonly IpRule[] | undefined, address: string): boolean {
  if (rules === undefined || rules.length === 0) return true
  const plain = plainAddress(address)
  return rules.find((rule) => rule.matches(plain))?.action !== 'block'
}

/** `*`, an address, a block such as `10.0.0.0/8`, or the beginning of addresses (`8.8.`); else undefined. */
export function matcherOf(value: string): ((address: string) => boolean) | undefined {
  if (value === '*') return () => true
  if (/^[0-9a-f.:]*[.:]$/i.test(value) && isIP(value) === 0) {
    return (address) => address.toLowerCase().startsWith(value.toLowerCase())
  }
  const [base = '', bits, more] = value.split('/')
  const address = plainAddress(base)
  if (isIP(address) === 0 || more !== undefined) return undefined
  const family = isIPv4(address) ? 'ipv4' : 'ipv6'
  const widest = family === 'ipv4' ? 32 : 128
  const prefix = bits === undefined ? widest : Number(bits)
  if (!/^\d{1,3}$/.test(bits ?? '0') || prefix > widest) return undefined
  const block = new BlockList()
  block.addSubnet(address, prefix, family)
  return (one) => isIP(one) !== 0 && block.check(one, isIPv4(one) ? 'ipv4' : 'ipv6')
}

function plainAddress(address: string): string {
  return address.replace(/^::ffff:(?=\d+\.\d+\.\d+\.\d+$)/i, '')
}
