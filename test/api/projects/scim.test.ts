import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEmail, findInvitedUsers, invite, mailsTo } from '../../fixtures/invites.ts'

const botica = await openBotica(t)
const { admin, services } = botica
const projectId = botica.project.id
const USERS = '/scim/v2/Users'
const ERROR = 'urn:ietf:params:scim:api:messages:2.0:Error'
const scim = { 'Content-Type': 'application/scim+json' }

interface ScimUser {
  readonly id: string
  readonly userName: string
  readonly emails: readonly { readonly value: string }[]
}

interface List {
  readonly totalResults: number
  readonly Resources: readonly ScimUser[]
}

const aUser = (email: string, changes: Record<string, unknown> = {}) => ({
  schemas: ['urn:ietf:params:scim:schemas:core:2.0:User'],
  userName: email,
  name: { givenName: 'Ann', familyName: 'Lee' },
  emails: [{ value: email, primary: true }],
  ...changes,
})

const mutability = {
  status: 400,
  body: { schemas: [ERROR], status: '400', scimType: 'mutability' },
}

async function readProfile(id: string): Promise<Resource> {
  const { body } = await admin.get<{ profile: { reference: string } }>(`ProjectMembership/${id}`)
  return (await admin.get(body.profile.reference)).body
}

const post = (body: unknown, client = admin) => client.post<ScimUser>(USERS, body, scim)

const find = async (filter: string, client = admin) =>
  (await client.get<List>(`${USERS}?filter=${encodeURIComponent(filter)}`)).body

t.test('a user is created as by an invite, without a mail', async (t) => {
  const email = anEmail()
  const externalId = randomUUID()
  const made = await post(aUser(email, { externalId, active: true }))
  t.match(made, {
    status: 201,
    body: {
      userName: email,
      externalId,
      name: { givenName: 'Ann', familyName: 'Lee' },
      emails: [{ value: email, primary: true }],
      active: true,
      userType: 'Practitioner',
      meta: { resourceType: 'User', version: /^W\/"[\w-]{22}"$/ },
    },
  })
  t.match(made.headers.get('content-type'), /^application\/scim\+json/)
  t.match(made.headers.get('location'), `${botica.baseUrl}scim/v2/Users/${made.body.id}`)
  t.same(await mailsTo(services, email), [])
  t.match((await admin.get(`${USERS}/${made.body.id}`)).body, made.body)
  t.match(await post(aUser(email)), {
    status: 409,
    body: { schemas: [ERROR], status: '409', scimType: 'uniqueness' },
  })
})

t.test('members are listed and filtered, programs are not among them', async (t) => {
  const tenant = await botica.createTenant()
  const emails = [anEmail('a'), anEmail('b'), anEmail('c')]
  const ids: string[] = []
  for (const email of emails) ids.push((await post(aUser(email), tenant.admin)).body.id)
  const unnamed = anEmail('d')
  await invite(tenant.admin, tenant.project.id, { email: unnamed, externalId: 'x-1' })
  const all = await tenant.admin.get<List>(USERS)
  t.match(all.body, { totalResults: 4, startIndex: 1, itemsPerPage: 4 })
  const page = await tenant.admin.get<List>(`${USERS}?startIndex=2&count=2`)
  t.match(page.body, { totalResults: 4, startIndex: 2, itemsPerPage: 2 })
  t.same(
    page.body.Resources.map(({ id }) => id),
    ids.slice(1),
  )
  t.match(await find(`userName eq "${emails[1]}"`, tenant.admin), {
    totalResults: 1,
    Resources: [{ id: ids[1] }],
  })
  t.match(await find(`userName eq "${unnamed}"`, tenant.admin), { totalResults: 1 })
  t.match(await find('externalId eq "x-1"', tenant.admin), { totalResults: 1 })
  t.match(await find(`emails.value eq "${emails[0]}"`, tenant.admin), { totalResults: 1 })
  t.match(await find(`userName eq "${emails[1]}"`), { totalResults: 0 }, 'not in another project')
  const broken = [
    'userName eq "\\x"',
    'userName eq "\t"',
    'userName eq "\0"',
    'emails eq "\\u0000"',
  ]
  for (const filter of ['userName sw "a"', 'password eq "x"', 'userName eq x', ')', ...broken]) {
    const path = `${USERS}?filter=${encodeURIComponent(filter)}`
    t.match(await admin.get(path), { status: 400, body: { schemas: [ERROR], status: '400' } })
  }
  t.equal((await admin.get(`${USERS}?count=x`)).status, 400)
})

t.test('a user of the project is changed by PUT and PATCH', async (t) => {
  const [email, later] = [anEmail(), anEmail()]
  const { id } = (await post(aUser(email, { externalId: randomUUID() }))).body
  const put = await admin.put(
    `${USERS}/${id}`,
    aUser(later, { userName: 'ann', name: { givenName: 'Anna', familyName: 'Li' } }),
    scim,
  )
  t.match(put, {
    status: 200,
    body: { userName: 'ann', name: { givenName: 'Anna', familyName: 'Li' }, active: true },
  })
  t.match(await findInvitedUsers(services, later), [{ firstName: 'Anna', emailVerified: false }])
  t.same(await findInvitedUsers(services, email), [])
  const patch = (...Operations: unknown[]) =>
    admin.patch(`${USERS}/${id}`, JSON.stringify({ Operations }), scim)
  const patched = await patch(
    { op: 'Replace', path: 'active', value: 'False' },
    { op: 'replace', path: 'name.familyName', value: 'Leigh' },
    { op: 'add', value: { externalId: 'y-1', 'name.givenName': 'Anne' } },
    { op: 'replace', path: 'emails[type eq "work"].value', value: email },
    { op: 'remove', path: 'userName' },
  )
  t.match(patched, {
    status: 200,
    body: {
      active: false,
      externalId: 'y-1',
      userName: email,
      name: { givenName: 'Anne', familyName: 'Leigh' },
      emails: [{ value: email }],
    },
  })
  for (const operation of [{ op: 'move' }, { op: 'add' }, { op: 'remove' }, 1]) {
    t.equal((await patch(operation)).status, 400)
  }
  t.equal((await patch({ op: 'replace', path: 'active', value: 'maybe' })).status, 400)
  const taken = anEmail()
  await invite(admin, projectId, { email: taken, scope: 'project' })
  t.match(await patch({ op: 'replace', path: 'emails.value', value: taken }), {
    status: 409,
    body: { scimType: 'uniqueness' },
  })
})

t.test('rejects a text that is not an address', async (t) => {
  const email = anEmail()
  const { body: membership } = await invite(admin, projectId, { email, scope: 'project' })
  const path = `${USERS}/${membership.id}`
  const invalid = { status: 400, body: { schemas: [ERROR], scimType: 'invalidValue' } }
  for (const value of ['nobody', 'a b@c.example', 'a@b.example; c@d.example', '<a@b.example>']) {
    t.match(await post(aUser(value)), invalid, value)
    t.match(await admin.put(path, aUser(value), scim), invalid, value)
    const Operations = [{ op: 'replace', path: 'emails.value', value }]
    t.match(await admin.patch(path, JSON.stringify({ Operations }), scim), invalid, value)
  }
  t.equal((await findInvitedUsers(services, email)).length, 1)
})

t.test('keeps concurrent changes of different attributes', async (t) => {
  const expected = { active: false, userName: 'luo', name: { familyName: 'Luo' } }
  const round = async () => {
    const user = { email: anEmail(), scope: 'project' }
    const { body: membership } = await invite(admin, projectId, user)
    const path = `${USERS}/${membership.id}`
    const patch = (...Operations: readonly object[]) =>
      admin.patch(path, JSON.stringify({ Operations }), scim)
    const answers = await Promise.all([
      patch({ op: 'replace', path: 'active', value: false }),
      patch({ op: 'replace', path: 'userName', value: 'luo' }),
      patch({ op: 'replace', path: 'name.familyName', value: 'Luo' }),
    ])
    for (const { status, text } of answers) t.equal(status, 200, text)
    t.match((await admin.get(path)).body, expected)
  }
  for (let i = 0; i < 5; i++) await round()
})

t.test('changes a user only in the version that If-Match names', async (t) => {
  const email = anEmail()
  const { body: membership } = await invite(admin, projectId, { email, scope: 'project' })
  const path = `${USERS}/${membership.id}`
  const version = async () => {
    const { body, headers } = await admin.get<{ meta: { version: string } }>(path)
    t.equal(headers.get('etag'), body.meta.version)
    return body.meta.version
  }
  const patch = (name: string, value: unknown, headers: Record<string, string> = {}) => {
    const Operations = [{ op: 'replace', path: name, value }]
    return admin.patch(path, JSON.stringify({ Operations }), { ...scim, ...headers })
  }
  const stale: string[] = []
  for (const [name, value] of [
    ['active', false],
    ['name.familyName', 'Luo'],
    ['emails.value', anEmail()],
  ] as const) {
    stale.push(await version())
    t.equal((await patch(name, value)).status, 200)
    t.notOk(stale.includes(await version()), `${name} changes the version`)
  }
  for (const tag of [...stale, 'W/"1"', 'x']) {
    const headers = { ...scim, 'If-Match': tag }
    for (const answer of [
      await admin.put(path, aUser(email), headers),
      await patch('active', true, headers),
      await admin.del(path, headers),
    ]) {
      t.match(answer, { status: 412, body: { schemas: [ERROR], status: '412' } }, tag)
    }
  }
  t.match((await admin.get(path)).body, { active: false, name: { familyName: 'Luo' } })

  const seen = { 'If-Match': `W/"1", ${await version()}` }
  const both = await Promise.all([patch('userName', 'a', seen), patch('userName', 'b', seen)])
  t.same(both.map(({ status }) => status).sort(), [200, 412])
  t.equal((await patch('active', true, { 'If-Match': '*' })).status, 200)
  t.equal((await admin.del(path, { 'If-Match': await version() })).status, 204)
})

t.test('a server scoped user keeps its address, and its name outside of the project', async (t) => {
  const email = anEmail()
  const { id } = (await post(aUser(email))).body
  const path = `${USERS}/${id}`
  t.match(await admin.put(path, aUser(anEmail()), scim), mutability)
  const renamed = aUser(email, { name: { givenName: 'Other', familyName: 'Name' }, active: false })
  t.match(await admin.put(path, renamed, scim), {
    status: 200,
    body: { active: false, name: { givenName: 'Other', familyName: 'Name' } },
  })
  t.match(await readProfile(id), { name: [{ given: ['Other'], family: 'Name' }] })
  t.match(await findInvitedUsers(services, email), [{ firstName: 'Ann', lastName: 'Lee' }])
})

t.test('a new name is the name of the profile, and of the User of a project', async (t) => {
  const email = anEmail()
  const user = aUser(email, { userType: 'Practitioner' })
  const { body: membership } = await invite(admin, projectId, { email, scope: 'project' })
  const { id } = membership
  const path = `${USERS}/${id}`
  const profile = await readProfile(id)
  const name = [
    { use: 'official', text: 'Dr Ann B Lee', prefix: ['Dr'], given: ['Ann', 'B'], family: 'Lee' },
    { use: 'maiden', family: 'Old' },
  ]
  t.equal((await admin.put(`Practitioner/${profile.id}`, { ...profile, name })).status, 200)
  const patch = (...Operations: unknown[]) =>
    admin.patch<ScimUser>(path, JSON.stringify({ Operations }), scim)
  t.match(await patch({ op: 'replace', path: 'active', value: true }), { status: 200 })
  t.same((await readProfile(id)).name, name, 'writes only changed elements')

  t.match(await admin.put(path, { ...user, name: { givenName: 'Eva', familyName: 'Li' } }, scim), {
    status: 200,
    body: { name: { givenName: 'Eva', familyName: 'Li' } },
  })
  t.same((await readProfile(id)).name, [
    { use: 'official', prefix: ['Dr'], given: ['Eva'], family: 'Li' },
    { use: 'maiden', family: 'Old' },
  ])
  t.match(await findInvitedUsers(services, email), [{ firstName: 'Eva', lastName: 'Li' }])

  t.match(await patch({ op: 'replace', value: { NAME: { FamilyName: 'Luo' } } }), { status: 200 })
  t.match(await readProfile(id), { name: [{ given: ['Eva'], family: 'Luo' }, {}] })
  t.match((await admin.get(path)).body, { name: { givenName: 'Eva', familyName: 'Luo' } })
})

t.test('a deleted profile has no name to change, unless the User is of the project', async (t) => {
  const email = anEmail()
  const { id } = (await post(aUser(email))).body
  const profile = await readProfile(id)
  t.equal((await admin.del(`Practitioner/${profile.id}`)).status, 200)
  const changed = aUser(email, { name: { givenName: 'B', familyName: 'C' } })
  t.match(await admin.put(`${USERS}/${id}`, changed, scim), mutability)
})

t.test('rejects changes of the type of a user', async (t) => {
  const email = anEmail()
  const { id } = (await post(aUser(email))).body
  const path = `${USERS}/${id}`
  const patch = (operation: object) =>
    admin.patch(path, JSON.stringify({ Operations: [operation] }), scim)
  t.match(await admin.put(path, aUser(email, { userType: 'Patient' }), scim), mutability)
  t.match(await patch({ op: 'replace', path: 'userType', value: 'Patient' }), mutability)
  t.match(await patch({ op: 'add', value: { userType: 'Bot' } }), mutability)
  t.match(await patch({ op: 'remove', path: 'userType' }), mutability)
  t.equal((await patch({ op: 'replace', path: 'userType', value: 'Practitioner' })).status, 200)
})

t.test('a patch changes the named attributes, or explains its rejection', async (t) => {
  const email = anEmail()
  const { id } = (await post(aUser(email))).body
  const path = `${USERS}/${id}`
  const before = await admin.get(path)
  const refusals: [operation: object, scimType: string][] = [
    [{ op: 'replace', path: 'nickName', value: 'A' }, 'invalidPath'],
    [{ op: 'replace', path: 'name.formatted', value: 'A' }, 'invalidPath'],
    [{ op: 'replace', path: 'name[type eq "work"].givenName', value: 'A' }, 'invalidPath'],
    [{ op: 'replace', path: 'emails[type].value', value: email }, 'invalidPath'],
    [{ op: 'replace', path: 'constructor', value: 'A' }, 'invalidPath'],
    [{ op: 'replace', path: 5, value: 'A' }, 'invalidPath'],
    [{ op: 'add', value: { active: false, displayName: 'A' } }, 'invalidPath'],
    [{ op: 'add', value: { name: { middleName: 'A' } } }, 'invalidPath'],
    [
      {
        op: 'add',
        value: {
          'urn:ietf:params:scim:schemas:extension:enterprise:2.0:User': { department: 'A' },
        },
      },
      'invalidPath',
    ],
    [{ op: 'replace', path: 'emails[type eq "home"].value', value: email }, 'noTarget'],
    [{ op: 'remove' }, 'noTarget'],
    [{ op: 'replace', path: 'id', value: 'A' }, 'mutability'],
    [{ op: 'replace', path: 'meta.version', value: 'A' }, 'mutability'],
    [{ op: 'remove', path: 'name.familyName' }, 'mutability'],
    [{ op: 'remove', path: 'active' }, 'mutability'],
    [{ op: 'remove', path: 'emails' }, 'mutability'],
    [{ op: 'replace', path: 'name', value: 'Ann' }, 'invalidValue'],
    [{ op: 'replace', path: 'active', value: 'maybe' }, 'invalidValue'],
    [{ op: 'replace', path: 'active' }, 'invalidSyntax'],
    [{ op: 'add', value: 'A' }, 'invalidSyntax'],
  ]
  for (const [operation, scimType] of refusals) {
    const Operations = [{ op: 'replace', path: 'externalId', value: 'x' }, operation]
    const answer = await admin.patch(path, JSON.stringify({ Operations }), scim)
    t.match(
      answer,
      { status: 400, body: { schemas: [ERROR], scimType } },
      JSON.stringify(operation),
    )
  }
  t.same((await admin.get(path)).body, before.body)
})

t.test('a user is removed with its membership alone', async (t) => {
  const email = anEmail()
  const { id } = (await post(aUser(email))).body
  t.equal((await admin.del(`${USERS}/${id}`)).status, 204)
  t.match(await admin.get(`${USERS}/${id}`), { status: 404, body: { schemas: [ERROR] } })
  t.equal((await findInvitedUsers(services, email)).length, 1)
})

t.test('rejects invalid users', async (t) => {
  const bad: [unknown, number][] = [
    [{}, 400],
    [aUser(anEmail(), { name: {} }), 400],
    [aUser(anEmail(), { userType: 'Bot' }), 400],
    [aUser(anEmail(), { userType: 'Patient' }), 400],
    [aUser(anEmail(), { emails: 'x' }), 400],
    [aUser('nobody'), 400],
    [aUser(anEmail(), { userName: 1 }), 400],
  ]
  for (const [body, status] of bad) {
    t.match(await post(body), { status, body: { schemas: [ERROR], status: String(status) } })
  }
})

t.test('only project admins, and only their own people', async (t) => {
  const other = await botica.createTenant()
  const { id } = (await post(aUser(anEmail()), other.admin)).body
  const { client } = await botica.createMember()
  t.match(await client.get(USERS), { status: 403, body: { schemas: [ERROR] } })
  t.equal((await post(aUser(anEmail()), client)).status, 403)
  t.equal((await createClient(botica.baseUrl).get(USERS)).status, 401)
  for (const answer of [
    await admin.get(`${USERS}/${id}`),
    await admin.put(`${USERS}/${id}`, aUser(anEmail()), scim),
    await admin.patch(`${USERS}/${id}`, '{"Operations":[]}', scim),
    await admin.del(`${USERS}/${id}`),
  ]) {
    t.match(answer, { status: 403, body: { schemas: [ERROR] } })
  }
  t.equal((await admin.get(`${USERS}/${randomUUID()}`)).status, 404)
})
