/**
 * Redirect URIs for codes: URLs that a browser would execute are rejected on every write path. Imports the check of
 * addresses, to try many of them.
 */
import t from 'tap'
import { isSafeRedirect } from '../../../../shared/access/credentials/clients.ts'
import { openBotica } from '../../../fixtures/botica.ts'
import { changedEveryWay } from '../../../fixtures/http/write-paths.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'

const SAFE = [
  'https://app.example/callback',
  'https://app.example:8443/callback?a=b',
  'http://localhost:9615',
  'http://127.0.0.1/callback',
  'http://127.8.9.10:5000/',
  'http://[::1]:3000/callback',
  'com.example.app:/oauth2redirect',
  'com.example.app://callback',
]
const REFUSED = [
  'http://app.example/',
  'http://localhost.evil.example/',
  'http://127.0.0.1.evil.example/',
  'javascript:alert(1)',
  'JavaScript:alert(1)',
  ' javascript:alert(1)',
  '\tjavascript:alert(1)',
  'java\nscript:alert(1)',
  ' https://app.example/',
  'https://app.example/ ',
  'data:text/html,<script>1</script>',
  'vbscript:x',
  'blob:https://app.example/1',
  'file:///etc/passwd',
  'about:blank',
  'app:/callback',
  'ftp://app.example/',
  '//app.example/',
  '/callback',
  'callback',
  '',
]

for (const uri of SAFE) t.equal(isSafeRedirect(uri), true, JSON.stringify(uri))
for (const uri of REFUSED) t.equal(isSafeRedirect(uri), false, JSON.stringify(uri))

const botica = await openBotica(t)
const { admin, anonymous, project, superAdmin, services } = botica

t.test(
  'rejects script URLs on every path that writes a client, even by administrators',
  async (t) => {
    const client = await admin.create({ resourceType: 'ClientApplication', name: 'App' })
    for (const changes of [
      { redirectUris: ['https://app.example/', 'JavaScript:alert(1)'] },
      { redirectUri: 'data:text/html,x' },
    ]) {
      for (const [way, status] of await changedEveryWay(admin, client, changes)) {
        t.equal(status, 400, way)
      }
      const path = `ClientApplication/${client.id}`
      t.equal((await superAdmin.put(path, { ...client, ...changes })).status, 400)
      const made = await admin.post<Raw>('ClientApplication', {
        ...client,
        id: undefined,
        ...changes,
      })
      t.equal(made.status, 400)
      t.match(made.body.issue[0].expression[0], /^ClientApplication\.redirectUri/)
      const byRoute = await admin.post(`/admin/projects/${project.id}/client`, {
        name: 'App',
        ...changes,
      })
      t.equal(byRoute.status, 400)
    }
    t.equal((await admin.get(`ClientApplication/${client.id}/_history/2`)).status, 404)
  },
)

t.test('accepts safe redirect URIs', async (t) => {
  const { redirectUris } = await admin.create({
    resourceType: 'ClientApplication',
    name: 'App',
    redirectUris: SAFE,
  })
  t.same(redirectUris, SAFE)
})

t.test('sends no code to a script URL stored before the check existed', async (t) => {
  const uri = 'data:text/html,x'
  const { id } = await admin.create({
    resourceType: 'ClientApplication',
    name: 'Old',
    redirectUris: ['https://old.example/'],
  })
  await services.database.query({
    text: `update version set content = replace(content, 'https://old.example/', $2) where id = $1`,
    values: [id, uri],
  })
  const query = new URLSearchParams({ response_type: 'code', client_id: id, redirect_uri: uri })
  const answer = await anonymous.get(`/oauth2/authorize?${query}`)
  t.equal(answer.status, 400)
  t.equal(answer.headers.get('location'), null)
})
