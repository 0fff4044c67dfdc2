/** Addresses, limits and settings that nothing could use are rejected with their path. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { changedEveryWay } from '../../fixtures/http/write-paths.ts'

const botica = await openBotica(t)
const { admin, superAdmin, project } = botica
const rejected = (expression: string, text: string | RegExp = /./) => ({
  status: 400,
  body: { issue: [{ expression: [expression], details: { text } }] },
})

t.test('rejects addresses of a client without http or https', async (t) => {
  const client = { resourceType: 'ClientApplication', name: 'App' }
  for (const name of ['jwksUri', 'launchUri']) {
    for (const value of [
      'app.example/launch',
      '/launch',
      'https:app.example',
      'https://',
      'com.example.app://launch',
      'javascript:alert(1)',
    ]) {
      const answer = await admin.post('ClientApplication', { ...client, [name]: value })
      const text = `${name} must be an absolute http or https URL`
      t.match(answer, rejected(`ClientApplication.${name}`, text), `${name} ${value}`)
    }
    for (const value of ['https://app.example/a?b=c', 'http://localhost:3000/a', 'HTTPS://a.b']) {
      const answer = await admin.post('ClientApplication', { ...client, [name]: value })
      t.match(answer, { status: 201, body: { [name]: value } }, `${name} ${value}`)
    }
  }
  const stored = await admin.create(client)
  for (const [way, status] of await changedEveryWay(admin, stored, { launchUri: 'nowhere' })) {
    t.equal(status, 400, way)
  }
})

t.test('rejects origins that no browser sends', async (t) => {
  const client = { resourceType: 'ClientApplication', name: 'App' }
  const good = [
    'https://app.example',
    'https://app.example:8443',
    'http://localhost:3000',
    'http://[::1]:3000',
    'capacitor://localhost',
    'chrome-extension://abcdefgh',
  ]
  t.match(await admin.post('ClientApplication', { ...client, allowedOrigin: good }), {
    status: 201,
    body: { allowedOrigin: good },
  })
  for (const origin of [
    'https://app.example/',
    'https://app.example/path',
    'https://app.example:443',
    'https://App.example',
    'https://*.app.example',
    'app.example',
    'null',
    '*',
  ]) {
    const allowedOrigin = ['https://app.example', origin]
    const answer = await admin.post('ClientApplication', { ...client, allowedOrigin })
    t.match(answer, rejected('ClientApplication.allowedOrigin[1]', /must be an origin/), origin)
  }
})

t.test('keeps redirects to app schemes', async (t) => {
  const redirectUris = ['com.example.app://callback']
  const made = await admin.post('ClientApplication', {
    ...{ resourceType: 'ClientApplication', name: 'App', redirectUris },
    launchUri: 'https://app.example/launch',
  })
  t.match(made, { status: 201, body: { redirectUris } })
})

t.test('rejects domains of a site with more than a host name', async (t) => {
  const path = `/admin/projects/${project.id}/sites`
  const post = (...domain: readonly unknown[]) =>
    admin.post(path, JSON.stringify([{ name: 'Portal', domain }]), {
      'Content-Type': 'application/json',
    })
  const domain = ['portal.example.org', 'localhost', '127.0.0.1', 'münchen.example']
  t.match(await post(...domain), { status: 200, body: { site: [{ domain }] } })
  for (const wrong of [
    'https://portal.example.org',
    'portal.example.org/path',
    'portal.example.org:8080',
    '*.example.org',
    'portal example',
    'portal..example',
  ]) {
    const answer = await post('portal.example.org', wrong)
    t.match(answer, rejected('Project.site[0].domain[1]', /must be a host name/), wrong)
  }
  const whole = (await superAdmin.get(`Project/${project.id}`)).body
  const site = [
    { name: 'a', domain: ['a.example'] },
    { name: 'b', domain: ['b/c'] },
  ]
  const answer = await superAdmin.put(`Project/${project.id}`, { ...whole, site })
  t.match(answer, rejected('Project.site[1].domain[0]'))
})

t.test('rejects settings of agents that the agent would ignore', async (t) => {
  const agent = { resourceType: 'Agent', name: 'Ward', status: 'active' }
  const on = { name: 'keepAlive', valueBoolean: true }
  for (const [setting, place, text] of [
    [[{ name: 'keepAlive', valueString: 'true' }], 0, 'keepAlive must have a valueBoolean'],
    [[on, { name: 'maxClientsPerRemote', valueDecimal: 2 }], 1, /must have a valueInteger/],
    [[{ name: 'queueDbPath', valueInteger: 1 }], 0, /must have a valueString/],
    [[on, { name: 'keepAlive', valueBoolean: false }], 1, 'keepAlive may be given once'],
  ] as const) {
    const answer = await admin.post('Agent', { ...agent, setting })
    t.match(answer, rejected(`Agent.setting[${place}]`, text))
  }
  const stored = await admin.create({ ...agent, setting: [on] })
  const changes = { setting: [{ name: 'logStatsFreqSecs', valueString: '60' }] }
  for (const [way, status] of await changedEveryWay(admin, stored, changes)) {
    t.equal(status, 400, way)
  }
  const setting = [
    on,
    { name: 'channelAutoRetryBackoffMultiplier', valueDecimal: 1.5 },
    { name: 'siteName', valueString: 'of another program' },
  ]
  t.match(await admin.put(`Agent/${stored.id}`, { ...stored, setting }), {
    status: 200,
    body: { setting },
  })
})

t.test('stores options of a UserConfiguration for other programs', async (t) => {
  const option = [
    { id: 'fhirQuota', valueInteger: 100 },
    { id: 'theme', valueString: 'dark' },
  ]
  const made = await admin.post('UserConfiguration', { resourceType: 'UserConfiguration', option })
  t.match(made, { status: 201, body: { option } })
})
