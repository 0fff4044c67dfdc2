import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import { anEmail, countPeople, invite, mailsTo } from '../../fixtures/invites.ts'

const botica = await openBotica(t)
const { admin, superAdmin, anonymous, services } = botica
const projectId = botica.project.id
const MEMBER = 'User is already a member of this project'
const SEVERAL =
  'User has several memberships that fit: give the externalId of one, or change one by its id'
const unknown = randomUUID()

const refusal = (status: number, text: string | RegExp) => ({
  status,
  body: { issue: [{ details: { text } }] },
})

t.test('rejects an existing member and leaves nothing', async (t) => {
  const email = anEmail()
  t.equal((await invite(admin, projectId, { email })).status, 200)
  const before = await countPeople(admin, services, email)
  const again: Record<string, unknown>[] = [
    { email },
    { email, resourceType: 'Patient', scope: 'server' },
    { email, scope: 'project' },
    { email, scope: 'project', upsert: true },
    { email, externalId: randomUUID() },
  ]
  for (const changes of again) {
    t.match(await invite(admin, projectId, changes), refusal(409, MEMBER))
  }
  const other = await invite(admin, projectId, {
    email,
    resourceType: 'Patient',
    scope: 'server',
    upsert: true,
  })
  t.match(other, refusal(409, `${MEMBER} with a different profile`))
  t.same(await countPeople(admin, services, email), before)
})

t.test(
  'an upsert changes the membership, is safe to repeat and sends no second mail',
  async (t) => {
    const email = anEmail()
    const first = await invite(admin, projectId, { email })
    const changes = { email, upsert: true, admin: true, firstName: 'Other' }
    const second = await invite(admin, projectId, changes)
    t.match(second, { status: 200, body: { id: first.body.id, admin: true } })
    t.same(second.body.user, first.body.user)
    t.same(second.body.profile, first.body.profile)
    const third = await invite(admin, projectId, changes)
    t.equal(third.headers.get('etag'), second.headers.get('etag'))
    t.equal((await mailsTo(services, email)).length, 1)
  },
)

t.test('invites an unknown person by an upsert', async (t) => {
  const email = anEmail()
  t.equal((await invite(admin, projectId, { email, upsert: true })).status, 200)
  t.equal((await mailsTo(services, email)).length, 1)
})

t.test('changes nothing for an upsert that matches several memberships', async (t) => {
  const email = anEmail()
  const scope = 'project'
  const first = await invite(admin, projectId, { email, scope })
  const externalId = randomUUID()
  const again = { email, scope, forceNewMembership: true }
  const second = await invite(admin, projectId, { ...again, externalId })
  const change = { email, scope, upsert: true, admin: true }
  t.match(await invite(admin, projectId, change), refusal(412, SEVERAL))
  const profile = first.body.profile
  const named = { ...change, membership: { profile } }
  t.match(await invite(admin, projectId, named), refusal(412, SEVERAL), 'both have the profile')
  for (const { body } of [first, second]) {
    t.match((await admin.get(`ProjectMembership/${body.id}`)).body, body)
  }
  const chosen = await invite(admin, projectId, { ...change, externalId })
  t.match(chosen, { status: 200, body: { id: second.body.id, admin: true } })

  const patient = await invite(admin, projectId, { ...again, resourceType: 'Patient' })
  const upserted = await invite(admin, projectId, { ...change, resourceType: 'Patient' })
  t.match(upserted, { status: 200, body: { id: patient.body.id, admin: true } })
})

t.test(
  'unknown fields are ignored unless the caller asks for strict handling, but not those of the membership',
  async (t) => {
    const strict = { Prefer: 'handling=strict' }
    const changes = { acess: [], membership: { admn: true, resourceType: 'ProjectMembership' } }
    const refused = await invite(admin, projectId, { email: anEmail(), ...changes }, strict)
    t.match(refused, {
      status: 400,
      body: { issue: [{ expression: ['acess'] }, { expression: ['membership.admn'] }] },
    })
    const lenient = await invite(admin, projectId, { email: anEmail(), ...changes })
    t.match(lenient, { status: 400, body: { issue: [{ expression: ['membership.admn'] }] } })
    t.equal((await invite(admin, projectId, { email: anEmail(), acess: [] })).status, 200)
    const own = { id: 'x', meta: {}, project: {}, user: {}, admin: true }
    t.equal((await invite(admin, projectId, { email: anEmail(), membership: own })).status, 200)
    t.equal((await invite(admin, projectId, { email: anEmail() }, strict)).status, 200)
  },
)

t.test('forceNewMembership makes another one in every case', async (t) => {
  const email = anEmail()
  const first = await invite(admin, projectId, { email })
  const second = await invite(admin, projectId, { email, forceNewMembership: true })
  t.equal(second.status, 200)
  t.not(second.body.id, first.body.id)
  t.same(second.body.user, first.body.user)
  t.same(second.body.profile, first.body.profile)
  const patient = { email, forceNewMembership: true, resourceType: 'Patient', scope: 'server' }
  t.match((await invite(admin, projectId, patient)).body.profile.reference, /^Patient\//)
  const otherScope = { email, forceNewMembership: true, scope: 'project' }
  t.not((await invite(admin, projectId, otherScope)).body.user.reference, first.body.user.reference)
})

t.test('an external id belongs to one membership of a project', async (t) => {
  const externalId = randomUUID()
  const first = await invite(admin, projectId, { externalId })
  t.match(first, { status: 200, body: { externalId } })
  const taken = refusal(409, /already exists/)
  const email = anEmail()
  for (const changes of [
    { externalId },
    { externalId, email },
    { externalId, forceNewMembership: true },
    { externalId, email, upsert: true },
  ]) {
    const refused = await invite(admin, projectId, changes)
    t.match(refused, taken)
    t.notMatch(refused.text, 'Washington')
  }
  t.same((await countPeople(admin, services, email)).slice(4), [0, 0])
  const same = await invite(admin, projectId, { externalId, upsert: true, admin: true })
  t.match(same, { status: 200, body: { id: first.body.id, admin: true } })
  const elsewhere = await botica.createTenant()
  t.equal((await invite(elsewhere.admin, elsewhere.project.id, { externalId })).status, 200)

  const path = `/admin/projects/${projectId}/members/${first.body.id}`
  t.equal((await admin.del(path)).status, 200)
  t.equal((await invite(admin, projectId, { externalId })).status, 200, 'it is free again')
})

t.test('bad fields are listed, one issue each', async (t) => {
  const empty = await admin.post(`/admin/projects/${projectId}/invite`, {
    resourceType: '',
    email: '',
  })
  const issue = [
    ['Resource type is required', 'resourceType'],
    ['First name is required', 'firstName'],
    ['Last name is required', 'lastName'],
    ['Either email or externalId is required', 'email'],
  ].map(([text, field]) => ({ details: { text }, expression: [field] }))
  t.match(empty, { status: 400, body: { issue } })
  const bad: [Record<string, unknown>, string][] = [
    [{ resourceType: 'Bot' }, 'resourceType'],
    [{ email: 'nobody' }, 'email'],
    [{ email: 'a@b, c@d' }, 'email'],
    [{ email: 1 }, 'email'],
    [{ scope: 'galaxy' }, 'scope'],
    [{ sendEmail: 'maybe' }, 'sendEmail'],
    [{ admin: 1 }, 'admin'],
    [{ membership: [] }, 'membership'],
    [{ membership: { admin: 'perhaps' } }, 'membership.admin'],
    [{ password: 'short' }, 'password'],
    [{ password: 'password1' }, 'password'],
    [{ access: 'all' }, 'access'],
    [{ patient: 'Patient/1' }, 'patient'],
  ]
  for (const [changes, expression] of bad) {
    const refused = await invite(admin, projectId, { email: anEmail(), ...changes })
    t.match(refused, { status: 400, body: { issue: [{ expression: [expression] }] } }, expression)
  }
  const path = `/admin/projects/${projectId}/invite`
  t.equal((await admin.post(path, '{', { 'Content-Type': 'application/json' })).status, 400)
  t.equal((await admin.post(path, 'x', { 'Content-Type': 'text/plain' })).status, 415)
})

t.test('leaves nothing of an invite that is rejected late', async (t) => {
  const foreign = await botica.createTenant()
  const theirs = await foreign.admin.create({ resourceType: 'AccessPolicy', name: 'Theirs' })
  const person = await foreign.admin.create({ resourceType: 'Practitioner' })
  const own = await admin.create({ resourceType: 'Practitioner' })
  const policy = (id: string | undefined) => ({ reference: `AccessPolicy/${id}` })
  const bad: [Record<string, unknown>, string | RegExp][] = [
    [{ accessPolicy: policy(unknown) }, `Access policy AccessPolicy/${unknown} does not exist`],
    [{ accessPolicy: policy(theirs.id) }, `Access policy AccessPolicy/${theirs.id} does not exist`],
    [{ membership: { access: [{ policy: policy(unknown) }] } }, /does not exist/],
    [
      { membership: { profile: { reference: `Practitioner/${unknown}` } } },
      'Profile does not belong to project',
    ],
    [
      { membership: { profile: { reference: `Practitioner/${person.id}` } } },
      'Profile does not belong to project',
    ],
    [
      { resourceType: 'Patient', membership: { profile: { reference: `Practitioner/${own.id}` } } },
      'Profile resourceType does not match request',
    ],
    [
      { resourceType: 'RelatedPerson', patient: { reference: `Patient/${unknown}` } },
      'Patient does not belong to project',
    ],
    [{ membership: { identifier: 'x' } }, /./],
    [{ membership: { access: [{ policy: {}, parameter: [{}] }] } }, /./],
    [{ lastName: 'x\u0000y' }, /./],
  ]
  const email = anEmail()
  const before = await countPeople(admin, services, email)
  for (const [changes, text] of bad) {
    t.match(await invite(admin, projectId, { email, ...changes }), refusal(400, text))
  }
  t.same(await countPeople(admin, services, email), before)
  const told = await invite(superAdmin, projectId, { email, accessPolicy: policy(theirs.id) })
  t.match(told, refusal(400, /does not belong to this project/))
})

t.test('rejects several profiles of one address as ambiguous', async (t) => {
  const email = anEmail()
  const telecom = [{ system: 'email', value: email }]
  await admin.create({ resourceType: 'Practitioner', telecom })
  await admin.create({ resourceType: 'Practitioner', telecom })
  t.equal((await invite(admin, projectId, { email })).status, 412)
  t.same((await countPeople(admin, services, email)).slice(4), [0, 0])
})

t.test('lets only administrators of the project invite', async (t) => {
  const email = anEmail()
  const foreign = (await botica.createTenant()).project.id
  const { client: member } = await botica.createMember()
  t.equal((await invite(anonymous, projectId, { email })).status, 401)
  t.equal((await invite(member, projectId, { email })).status, 403)
  t.equal((await invite(admin, foreign, { email })).status, 403)
  t.equal((await invite(admin, unknown, { email })).status, 403)
  t.equal((await invite(superAdmin, unknown, { email })).status, 404)
})

t.test('creates one member for equal concurrent invites', async (t) => {
  const email = anEmail()
  const [members] = await countPeople(admin, services, email)
  const second = await botica.startWeb()
  const clients = [admin, admin, createClient(second, admin.token)]
  const answers = await Promise.all(
    [...clients, ...clients, ...clients].map((client) => invite(client, projectId, { email })),
  )
  const statuses = answers.map(({ status }) => status).sort()
  t.same(statuses, [200, ...Array(8).fill(409)])
  const [after, , , , users, mails] = await countPeople(admin, services, email)
  t.same([after, users, mails], [Number(members) + 1, 1, 1])
})

t.test(
  'a membership that is removed while it is invited again ends whole or not at all',
  async (t) => {
    for (let round = 0; round < 5; round++) {
      const email = anEmail()
      const { id } = (await invite(admin, projectId, { email })).body
      const [removed, invited] = await Promise.all([
        admin.del(`/admin/projects/${projectId}/members/${id}`),
        invite(admin, projectId, { email, upsert: true, admin: true }),
      ])
      t.equal(removed.status, 200)
      t.equal(invited.status, 200)
      const found = await admin.get(`ProjectMembership/${invited.body.id}`)
      t.equal(found.status, invited.body.id === id ? 410 : 200)
    }
  },
)

t.test('an invite with an Idempotency-Key is answered as the first time', async (t) => {
  const email = anEmail()
  const headers = { 'Idempotency-Key': randomUUID() }
  const first = await invite(admin, projectId, { email }, headers)
  const second = await invite(admin, projectId, { email }, headers)
  t.equal(second.status, 200)
  t.same(second.body, first.body)
  t.equal(second.headers.get('etag'), first.headers.get('etag'))
  t.equal((await invite(admin, projectId, { email, admin: true }, headers)).status, 422)
  t.equal((await mailsTo(services, email)).length, 1)
})
