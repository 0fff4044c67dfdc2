/** No policy reveals secrets of Subscriptions or other Users, or hides the caller's own User. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aPerson } from '../../fixtures/people.ts'
import { asking, memberUnder } from '../../fixtures/policy/policy.ts'

const botica = await openBotica(t)
const { admin, superAdmin, services, project } = botica
const [author, other] = await Promise.all([botica.createMember(), botica.createMember()])

const SECRET = 'https://www.medplum.com/fhir/StructureDefinition/subscription-secret'
const OLDER = 'https://www.medplum.com/fhir/StructureDefinition-subscriptionSecret'
const aSubscription = {
  resourceType: 'Subscription',
  status: 'off',
  reason: 'test',
  criteria: 'Patient?name=x',
  extension: [SECRET, OLDER].map((url) => ({ url, valueString: 'plain secret' })),
  channel: {
    type: 'rest-hook',
    endpoint: 'https://example.org/hook',
    header: ['Authorization: Bearer plain secret'],
  },
}

t.test('shows secrets of a Subscription to its author and admins only', async (t) => {
  const { id } = await author.client.create(aSubscription)
  const path = `Subscription/${id}`
  for (const client of [author.client, admin]) {
    const seen = await client.get(path)
    t.match(seen.body, { extension: aSubscription.extension, channel: aSubscription.channel })
  }
  const graphql = {
    query: `{ Subscription(id: "${id}") { channel { header } extension { valueString } } }`,
  }
  const batch = {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [{ request: { method: 'GET', url: path } }],
  }
  const answers = await Promise.all([
    other.client.get(path),
    other.client.get(`${path}/_history`),
    other.client.get(`${path}/_history/1`),
    other.client.get(`Subscription?_id=${id}`),
    other.client.get(path, { 'X-Medplum': 'extended' }),
    other.client.post('', batch),
    other.client.post('$graphql', graphql, { 'Content-Type': 'application/json' }),
  ])
  for (const { status, text } of answers) {
    t.equal(status, 200, text)
    t.match(text, '***')
    t.notMatch(text, 'plain secret')
  }
  const [read] = answers
  t.match(read?.body, {
    extension: [SECRET, OLDER].map((url) => ({ url, valueString: '***' })),
    channel: { header: ['***'] },
  })
})

t.test('requires new secrets from a member who takes over a Subscription', async (t) => {
  const keeper = await memberUnder(botica, {
    entries: [{ resourceType: 'Subscription' }, { resourceType: 'Patient' }],
  })
  const { id } = await author.client.create(aSubscription)
  const path = `Subscription/${id}`
  const { body } = await keeper.client.get<typeof aSubscription>(path)
  t.equal(
    (await keeper.client.patch(path, [{ op: 'add', path: '/reason', value: 'x' }])).status,
    400,
  )
  const elsewhere = { ...body.channel, endpoint: 'https://evil.example.org/' }
  t.match(await keeper.client.put(path, { ...body, channel: elsewhere }), {
    status: 400,
    body: { issue: [{ expression: ['Subscription.channel.header'] }] },
  })
  t.equal(
    (await keeper.client.put(path, { ...body, channel: { ...elsewhere, header: [] } })).status,
    400,
  )
  const own = {
    ...aSubscription,
    id,
    channel: { ...elsewhere, header: ['X-Mine: 1'] },
    extension: undefined,
  }
  t.equal((await other.client.put(path, own)).status, 403, 'it has no policy')
  t.equal((await keeper.client.put(path, own)).status, 200)
  t.match((await keeper.client.get(path)).body, { channel: { header: ['X-Mine: 1'] } })
  t.notMatch((await keeper.client.get(`${path}/_history`)).text, 'plain secret')
})

t.test('lets a member read its own User and change its names', async (t) => {
  const [person, stranger] = await Promise.all([
    aPerson(services, project),
    aPerson(services, project, { isProjectScoped: true }),
  ])
  const session = await services.principals.forMembership(String(person.membership.id))
  if (session === undefined) throw new Error('The person has no session')
  // A session without a login has no User.
  const ask = asking(services, { ...session.principal, user: person.user.id })
  const path = `User/${person.user.id}`
  const own = await ask('GET', path)
  t.match(own, { status: 200, body: { firstName: 'Ada', email: person.email } })
  t.notOk('passwordHash' in own.body)

  const named = { ...own.body, firstName: 'Augusta', email: 'x@example.org', admin: true }
  t.match(await ask('PUT', path, named), { status: 200, body: { firstName: 'Augusta' } })
  const stored = await superAdmin.get(path)
  t.match(stored.body, { firstName: 'Augusta', email: person.email })
  t.notOk('admin' in stored.body)

  t.equal((await ask('GET', `User/${stranger.user.id}`)).status, 404)
  // Only the service writes these elements.
  const theirs = { ...stranger.user, provenEmail: undefined }
  t.equal((await ask('PUT', `User/${stranger.user.id}`, theirs)).status, 404)
  t.equal((await ask('GET', 'User')).status, 403)
  t.equal((await ask('GET', `${path}/_history`)).status, 403)
  t.equal((await ask('GET', `${path}/_history/1`)).status, 403)
  t.equal((await ask('DELETE', path)).status, 403)
  t.equal(
    (await ask('POST', 'User', { resourceType: 'User', firstName: 'A', lastName: 'B' })).status,
    403,
  )
  t.match((await ask('GET', '_history')).body, { resourceType: 'Bundle' })
  t.match(await ask('GET', '?_type=User'), { status: 403 })
})

t.test('logs the reason for a denial and omits it from the response', async (t) => {
  const lines: Record<string, unknown>[] = []
  const { log } = services
  const info = log.info
  log.info = (fields: object) => void lines.push({ ...fields })
  t.teardown(() => Object.assign(log, { info }))
  const constraint = { language: 'text/fhirpath', expression: 'active' }
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'Patient', criteria: 'Patient?gender=male', writeConstraint: [constraint] },
    ],
  })
  const refused = async (type: string, body: object) => {
    lines.length = 0
    const { status, text } = await client.post(type, { resourceType: type, ...body })
    t.equal(status, 403)
    const said = lines.flatMap((line) => ('refused' in line ? String(line.refused) : []))
    for (const why of said) t.notOk(text.includes(why))
    return said.join()
  }
  t.equal(await refused('Basic', { code: { text: 'x' } }), 'no right to create Basic')
  t.match(await refused('Patient', { gender: 'female' }), /^criteria of every entry for create/)
  t.match(
    await refused('Patient', { gender: 'male', active: false }),
    /^writeConstraint of AccessPolicy\/\S+ entry 0$/,
  )
})
