/** Imports the choice of keys, whose ages no request can set. */
import t from 'tap'
import type { SigningKey } from '../../../shared/access/credentials/tokens.ts'
import { inUse } from '../../../shared/identity/signing-keys.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { askToken } from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { anonymous, baseUrl, admin, superAdmin } = botica

t.test('a new key is published before it signs', async (t) => {
  const ids = async () => {
    const { body } = await anonymous.get<{ keys: { kid: string; d?: string }[] }>(
      '/.well-known/jwks.json',
    )
    t.notOk(body.keys.some(({ d }) => d !== undefined))
    return body.keys.map(({ kid }) => kid)
  }
  const signer = async () => {
    const { id, secret } = botica.adminCredentials
    const form = { grant_type: 'client_credentials', client_id: id, client_secret: secret }
    const { body } = await askToken(baseUrl, form)
    return JSON.parse(Buffer.from(body.access_token.split('.')[0] ?? '', 'base64url').toString())
      .kid
  }
  const [before, kid] = await Promise.all([ids(), signer()])
  t.equal((await admin.post('/admin/super/rotatekeys')).status, 403)
  t.equal((await superAdmin.post('/admin/super/rotatekeys')).status, 200)
  const after = await ids()
  t.equal(after.length, before.length + 2, 'one of each algorithm')
  t.ok(before.every((id) => after.includes(id)))
  t.equal(await signer(), kid, 'the one before signs on')
})

t.test('keys take turns by their age', (t) => {
  const hour = 3_600_000
  // The rotation reads no other member of a key.
  const aKey = (kid: string) => ({ kid }) as SigningKey
  const stored = [
    { key: aKey('3'), madeAt: 200 * hour },
    { key: aKey('2'), madeAt: 100 * hour },
    { key: aKey('1'), madeAt: 0 },
  ]
  const at = (now: number, list = stored) => inUse(list, now).map(({ kid }) => kid)
  t.same(at(1, stored.slice(2)), ['1'], 'the very first signs at once')
  t.same(at(100 * hour + 1, stored.slice(1)), ['1', '2'])
  t.same(at(101 * hour, stored.slice(1)), ['2', '1'])
  t.same(at(126 * hour, stored.slice(1)), ['2'])
  t.same(at(200 * hour + 1), ['2', '3'])
  t.end()
})
