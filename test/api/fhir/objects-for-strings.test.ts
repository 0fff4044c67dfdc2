/** An object without a callable `toString` cannot be turned into a string, so code that tries throws a TypeError. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'

const botica = await openBotica(t)
const { admin, anonymous, project } = botica
const odd = { toString: null, valueOf: null }
const json = { 'Content-Type': 'application/json' }
const parameters = (parameter: object) => ({
  resourceType: 'Parameters',
  parameter: [parameter],
})
const patient = await admin.create({ resourceType: 'Patient' })
const bot = await admin.post(`/admin/projects/${project.id}/bot`, { name: 'Bot' })
const entry = (resource: object) => ({
  resourceType: 'Bundle',
  type: 'batch',
  entry: [{ resource, request: { method: 'PATCH', url: `Patient/${patient.id}` } }],
})
const aQuery = 'query($n: Int) { PatientList(_count: $n) { id } }'
const aMeta = { name: 'meta', valueMeta: { tag: [{ system: odd, code: odd }] } }

const REQUESTS: readonly (readonly [name: string, path: string, body: object])[] = [
  ['the type of a bundle', '', { resourceType: 'Bundle', type: odd, entry: [{}] }],
  ['the id of a run', `Bot/${bot.body.id}/$replay`, { runId: odd }],
  ['a tag', `Patient/${patient.id}/$meta-add`, parameters(aMeta)],
  ['a url', 'CodeSystem/$import', parameters({ name: 'system', valueUri: odd })],
  ['a type', 'Patient', { resourceType: odd }],
  ['a code', 'ValueSet/$validate-code', parameters({ name: 'code', valueCode: odd })],
  ['a reference', 'Observation', { resourceType: 'Observation', subject: { reference: odd } }],
  ['a bot name', `/admin/projects/${project.id}/bot`, { name: odd }],
  ['an email', `/admin/projects/${project.id}/invite`, { resourceType: 'Patient', email: odd }],
  ['a SCIM operation', '/scim/v2/Users', { userName: odd, active: odd }],
]

for (const [name, path, body] of REQUESTS) {
  t.test(`rejects an object in place of ${name}`, async (t) => {
    const { status, text } = await admin.post(path, body, json)
    t.ok(status >= 400 && status < 500, `${status} ${text}`)
  })
}

t.test('rejects an object in place of a search count in GraphQL', async (t) => {
  const body = { query: aQuery, variables: { n: odd } }
  const { status, text } = await admin.post('$graphql', body, json)
  t.ok(status < 500, text)
  t.match(text, /"errors"/)
})

t.test('rejects an object in place of the content type of a patch', async (t) => {
  const patch = { resourceType: 'Binary', contentType: odd, data: 'W10=' }
  const { status, text } = await admin.post('', entry(patch))
  t.equal(status, 200)
  t.match(text, /"status":"400"/)
})

t.test('rejects an object in place of a redirect URI', async (t) => {
  const answer = await anonymous.post('/oauth2/register', { redirect_uris: [odd] }, json)
  t.match(answer, { status: 400, body: { error: 'invalid_redirect_uri' } })
})
