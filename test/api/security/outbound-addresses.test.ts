/**
 * User-supplied URLs may only reach global unicast addresses: no private network, and no cloud metadata. Imports the
 * rules of addresses, to try networks that no test can reach.
 */
import t from 'tap'
import {
  blockedReason,
  carriedAddress,
  isPublicAddress,
  readHostRule,
  UNRESTRICTED,
} from '../../../shared/core/config/outbound.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { aSubscription } from '../../fixtures/http/receiver.ts'

const PRIVATE: Readonly<Record<string, readonly string[]>> = {
  loopback: ['127.0.0.1', '127.255.255.254', '::1'],
  unspecified: ['0.0.0.0', '0.1.2.3', '::'],
  'private networks': ['10.0.0.1', '172.16.0.1', '172.31.255.255', '192.168.0.1', '100.64.0.1'],
  'link-local': ['169.254.0.1', 'fe80::1', 'fe80::a9fe:a9fe'],
  'unique and site local': ['fc00::1', 'fd12:3456::1', 'fec0::1'],
  multicast: ['224.0.0.1', '239.255.255.250', '255.255.255.255', 'ff02::1', 'ff0e::1'],
  reserved: ['192.0.0.1', '192.88.99.1', '198.18.0.1', '198.19.255.255', '240.0.0.1'],
  documentation: ['192.0.2.1', '198.51.100.1', '203.0.113.1', '2001:db8::1', '3fff::1'],
  'AWS metadata': ['169.254.169.254', '169.254.170.2', 'fd00:ec2::254', 'fd00:ec2::23'],
  'Azure metadata': ['169.254.169.254', '168.63.129.16'],
  'Google metadata': ['169.254.169.254', 'fd20:ce::254'],
  'Oracle metadata': ['169.254.169.254', '192.0.0.192', 'fd00:c1::a9fe:a9fe'],
  'Alibaba metadata': ['100.100.100.200'],
  compatible: ['::127.0.0.1', '::8.8.8.8', '::a00:1'],
  mapped: ['::ffff:127.0.0.1', '::ffff:10.0.0.1', '::ffff:8.8.8.8', '::ffff:a9fe:a9fe'],
  translated: ['::ffff:0:127.0.0.1', '::ffff:0:7f00:1', '::ffff:0:8.8.8.8'],
  NAT64: ['64:ff9b::127.0.0.1', '64:ff9b::a9fe:a9fe', '64:ff9b::8.8.8.8', '64:ff9b:1::a00:1'],
  '6to4': ['2002:7f00:1::', '2002:a9fe:a9fe::1', '2002:808:808::'],
  Teredo: ['2001::1', '2001:0:808:808::f5ff:fffe'],
  'IETF protocols': ['2001:10::1', '2001:20::1', '2001:2::1'],
  'outside of 2000::/3': ['100::1', '1fff::1', '4000::1', '5f00::1', '8000::1', 'e000::1'],
}
const PUBLIC = ['1.1.1.1', '8.8.8.8', '93.184.216.34', '172.32.0.1', '168.63.129.17', '223.255.0.1']
const PUBLIC_6 = [
  '2606:4700:4700::1111',
  '2a00:1450:4001::200e',
  '2400:cb00::1',
  '2001:4860:4860::8888',
]

const url = (address: string) => `http://${address.includes(':') ? `[${address}]` : address}/hook`

t.test('treats addresses that are not global unicast as private', (t) => {
  for (const [kind, addresses] of Object.entries(PRIVATE)) {
    for (const address of addresses) t.notOk(isPublicAddress(address), `${kind}: ${address}`)
  }
  for (const address of [...PUBLIC, ...PUBLIC_6]) t.ok(isPublicAddress(address), address)
  for (const odd of ['fe80::1%lo', '2606:4700::1%eth0', '', 'localhost', '1.2.3', '::g']) {
    t.notOk(isPublicAddress(odd), `"${odd}"`)
  }
  t.end()
})

t.test('rejects private addresses in a Subscription', async (t) => {
  const { admin } = await openBotica(t, { env: { HOOK_TARGETS: 'public', BOT_FETCH: 'public' } })
  for (const [kind, addresses] of Object.entries(PRIVATE)) {
    for (const address of addresses) {
      const made = await admin.post('Subscription', aSubscription('Patient', url(address)))
      t.equal(made.status, 400, `${kind}: ${address}`)
    }
  }
  for (const spelling of [
    'http://2130706433/',
    'http://0x7f.1/',
    'http://0177.0.0.1/',
    'http://127.1/',
  ]) {
    const made = await admin.post('Subscription', aSubscription('Patient', spelling))
    t.equal(made.status, 400, spelling)
  }
})

t.test('calls no host with one private address among others', (t) => {
  const rules = { ...UNRESTRICTED, reach: 'public' } as const
  const hook = new URL('https://hooks.example.org/')
  t.equal(blockedReason(rules, hook, ['93.184.216.34', '2606:4700::1']), undefined)
  for (const address of ['168.63.129.16', '::ffff:0:127.0.0.1', '2002:7f00:1::']) {
    t.match(blockedReason(rules, hook, ['93.184.216.34', address]), /not a public address/, address)
  }
  t.end()
})

t.test('applies a block list to IPv6 forms of its addresses', (t) => {
  const rule = readHostRule('10.0.0.0/8')
  const rules = { ...UNRESTRICTED, never: rule === undefined ? [] : [rule] }
  const host = new URL('http://inside.example/')
  for (const address of [
    '10.1.2.3',
    '::10.1.2.3',
    '::ffff:10.1.2.3',
    '::ffff:0:10.1.2.3',
    '64:ff9b::10.1.2.3',
    '64:ff9b:1::a01:203',
    '2002:a01:203::1',
    '2001:0:808:808:0:0:f5fe:fdfc',
  ]) {
    t.match(blockedReason(rules, host, [address]), /not called/, address)
    t.match(blockedReason(rules, new URL(url(address))), /not called/, `blocks ${address} itself`)
  }
  t.match(blockedReason(rules, host, ['::ffff:10.1.2.3%eth-0.1']), /not called/)
  for (const address of ['11.1.2.3', '64:ff9b::11.1.2.3', '2606:4700:a01:203::']) {
    t.equal(blockedReason(rules, host, [address]), undefined, address)
  }
  t.equal(carriedAddress('2606:4700::1'), undefined)
  t.end()
})
