/** Imports the keys of clients, to fetch from forbidden addresses directly. */
import t from 'tap'
import { createClientKeys } from '../../../server/identity/clients/assertions.ts'
import { openBotica } from '../../fixtures/botica.ts'

const { services } = await openBotica(t, { env: { HOOK_TARGETS: 'public' } })

t.test('keys are not fetched from inside or over plain HTTP', async (t) => {
  const keys = createClientKeys(services)
  for (const jwksUri of [
    'http://example.org/keys',
    'https://127.0.0.1/keys',
    'https://[::1]/keys',
    'https://[::ffff:127.0.0.1]/keys',
    'https://169.254.169.254/latest/meta-data',
    'https://10.0.0.1/keys',
    'https://localhost/keys',
    'https://example.org:8443/keys',
    'file:///etc/passwd',
    'nonsense',
  ]) {
    const client = { resourceType: 'ClientApplication', jwksUri }
    await t.rejects(keys.find(client, 'k'), { message: /^cannot be checked/ }, jwksUri)
  }
})
