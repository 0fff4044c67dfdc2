/** Imports the check of password hashes, which no route returns. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { verifyPassword } from '../../../shared/access/credentials/passwords.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { anEmail, findInvitedUsers, invite, mailsTo } from '../../fixtures/invites.ts'
import { openSdk } from '../../fixtures/sdk.ts'

const botica = await openBotica(t)
const { admin, superAdmin, services } = botica
const projectId = botica.project.id

t.test('an invite makes a user, a profile and a membership', async (t) => {
  const email = anEmail('Mixed.Case')
  const made = await invite(admin, projectId, { email, admin: true })
  const address = email.toLowerCase()
  t.equal(made.status, 200)
  t.match(made.headers.get('content-type'), /^application\/fhir\+json/)
  t.equal(made.headers.get('etag'), 'W/"1"')
  t.ok(made.headers.get('last-modified'))
  t.match(made.body, {
    resourceType: 'ProjectMembership',
    admin: true,
    project: { reference: `Project/${projectId}`, display: botica.project.name },
    user: { reference: /^User\//, display: address },
    profile: { reference: /^Practitioner\//, display: 'George Washington' },
  })
  const [user, ...others] = await findInvitedUsers(services, address)
  t.equal(others.length, 0)
  t.match(user, { firstName: 'George', lastName: 'Washington', email: address })
  t.equal(user?.project, undefined)
  t.equal(user?.passwordHash, undefined)
  t.match((await admin.get(made.body.profile.reference)).body, {
    name: [{ given: ['George'], family: 'Washington' }],
    telecom: [{ system: 'email', use: 'work', value: address }],
  })
})

t.test('scopes patients to the project, unless the invite sets another scope', async (t) => {
  const [own, server, external] = [anEmail(), anEmail(), anEmail()]
  await invite(admin, projectId, { resourceType: 'Patient', email: own })
  await invite(admin, projectId, { resourceType: 'Patient', email: server, scope: 'server' })
  await invite(admin, projectId, { email: external, scope: 'server', externalId: randomUUID() })
  const project = { reference: `Project/${projectId}` }
  t.match(await findInvitedUsers(services, own), [{ project }])
  t.equal((await findInvitedUsers(services, server))[0]?.project, undefined)
  t.match(await findInvitedUsers(services, external), [{ project }])
})

t.test('creates separate users for one address in each project and in the server', async (t) => {
  const email = anEmail()
  const other = await botica.createTenant()
  const here = await invite(admin, projectId, { email, scope: 'project' })
  const there = await invite(other.admin, other.project.id, { email, scope: 'project' })
  const everywhere = await botica.createTenant()
  const server = await invite(everywhere.admin, everywhere.project.id, { email })
  const users = [here, there, server].map((made) => made.body.user.reference)
  t.equal(new Set(users).size, 3)
  const again = await invite(superAdmin, (await botica.createTenant()).project.id, { email })
  t.equal(again.body.user.reference, users[2], 'a server scoped user joins further projects')
})

t.test('a RelatedPerson may be invited before the patient is known', async (t) => {
  const patient = await admin.create({ resourceType: 'Patient', name: [{ family: 'Child' }] })
  const unknown = await invite(admin, projectId, {
    resourceType: 'RelatedPerson',
    email: anEmail(),
  })
  t.equal(unknown.status, 200)
  t.equal((await admin.get(unknown.body.profile.reference)).body.patient, undefined)
  const known = await invite(admin, projectId, {
    resourceType: 'RelatedPerson',
    email: anEmail(),
    patient: { reference: `Patient/${patient.id}` },
  })
  t.match((await admin.get(known.body.profile.reference)).body, {
    patient: { reference: `Patient/${patient.id}` },
  })
})

t.test('the details of the membership win over the fields of the same name', async (t) => {
  const policy = await admin.create({ resourceType: 'AccessPolicy', name: 'Ward' })
  const organization = await admin.create({ resourceType: 'Organization', name: 'Ward' })
  const access = [1, 2].map(() => ({
    policy: { reference: `AccessPolicy/${policy.id}` },
    parameter: [
      {
        name: 'provider_organization',
        valueReference: { reference: `Organization/${organization.id}` },
      },
    ],
  }))
  const made = await invite(admin, projectId, {
    email: anEmail(),
    admin: true,
    unheardOf: 1,
    membership: {
      admin: false,
      access,
      userName: 'george',
      identifier: [{ system: 'urn:staff', value: '7' }],
      active: true,
      project: { reference: 'Project/other' },
      user: { reference: 'User/other' },
      id: 'mine',
    },
  })
  t.match(made, {
    status: 200,
    body: { admin: false, access, userName: 'george', identifier: [{ value: '7' }] },
  })
  t.not(made.body.id, 'mine')
  t.match(made.body.project, { reference: `Project/${projectId}` })
})

t.test('applies the patient policy of the project, or the named policy', async (t) => {
  const tenant = await botica.createTenant()
  const { id } = tenant.project
  const policies = await Promise.all(
    ['Default', 'Own'].map((name) => tenant.admin.create({ resourceType: 'AccessPolicy', name })),
  )
  const [byDefault, own] = policies.map((policy) => ({ reference: `AccessPolicy/${policy.id}` }))
  const project = { ...tenant.project, defaultPatientAccessPolicy: byDefault }
  t.equal((await superAdmin.put(`Project/${id}`, project)).status, 200)
  const inviteForPolicy = async (changes: Record<string, unknown>) => {
    const made = await invite(tenant.admin, id, { email: anEmail(), ...changes })
    return made.body.accessPolicy
  }
  t.same(await inviteForPolicy({ resourceType: 'Patient' }), byDefault)
  t.same(await inviteForPolicy({ resourceType: 'Patient', accessPolicy: own }), own)
  t.equal(await inviteForPolicy({ resourceType: 'Patient', admin: true }), undefined)
  t.equal(await inviteForPolicy({}), undefined)
})

t.test('applies the default policy of the project for the kind of member', async (t) => {
  const tenant = await botica.createTenant()
  const { id } = tenant.project
  const kinds = ['Admin', 'Practitioner', 'Patient', 'RelatedPerson']
  const policies = await Promise.all(
    kinds.map((name) => tenant.admin.create({ resourceType: 'AccessPolicy', name })),
  )
  const defaultAccessPolicies = policies.map((policy, i) => ({
    profileType: kinds[i],
    accessPolicy: { reference: `AccessPolicy/${policy.id}` },
  }))
  const save = (changes: object) =>
    superAdmin.put(`Project/${id}`, { ...tenant.project, ...changes })
  t.equal((await save({ defaultAccessPolicies })).status, 200)
  const invitedPolicy = async (changes: Record<string, unknown>) => {
    const made = await invite(tenant.admin, id, { email: anEmail(), ...changes })
    t.equal(made.status, 200, made.text)
    return made.body.accessPolicy
  }
  const [ofAdmins, ofPractitioners, ofPatients] = defaultAccessPolicies.map(
    ({ accessPolicy }) => accessPolicy,
  )
  t.same(await invitedPolicy({ admin: true }), ofAdmins)
  t.same(await invitedPolicy({}), ofPractitioners)
  t.same(await invitedPolicy({ resourceType: 'Patient' }), ofPatients)
  t.same(await invitedPolicy({ accessPolicy: ofAdmins }), ofAdmins)

  const [first] = defaultAccessPolicies
  const twice = await save({ defaultAccessPolicies: [first, first] })
  t.match(twice, {
    status: 400,
    body: { issue: [{ expression: ['Project.defaultAccessPolicies[1].profileType'] }] },
  })
  const foreign = await (await botica.createTenant()).admin.create({ resourceType: 'AccessPolicy' })
  const accessPolicy = { reference: `AccessPolicy/${foreign.id}` }
  await save({ defaultAccessPolicies: [{ profileType: 'Practitioner', accessPolicy }] })
  const refused = await invite(tenant.admin, id, { email: anEmail() })
  t.equal(refused.status, 400, 'a policy of another project')
})

t.test('an existing profile is used when it is named, or when its address fits', async (t) => {
  const email = anEmail()
  const telecom = [{ system: 'email', value: email }]
  const practitioner = await admin.create({ resourceType: 'Practitioner', telecom })
  const found = await invite(admin, projectId, { email })
  t.equal(found.body.profile.reference, `Practitioner/${practitioner.id}`)
  const named = await invite(admin, projectId, {
    email: anEmail(),
    membership: { profile: { reference: `Practitioner/${practitioner.id}` } },
  })
  t.equal(named.body.profile.reference, `Practitioner/${practitioner.id}`)
})

t.test('mails new and known users', async (t) => {
  const email = anEmail()
  await invite(admin, projectId, { email })
  const [welcome] = await mailsTo(services, email)
  t.match(welcome, { kind: 'invite', subject: 'Welcome to Botica' })
  t.match(welcome?.text, /setpassword\/[0-9a-f-]{36}\/[0-9a-f]{32}\n/)
  t.match(welcome?.text, botica.project.name)
  const again = await botica.createTenant()
  await invite(again.admin, again.project.id, { email })
  t.match(
    (await mailsTo(services, email))[1],
    { kind: 'invite' },
    'invites a user without a password again',
  )
  const set = { email, password: 'correct horse battery' }
  t.equal((await superAdmin.post('/admin/super/setpassword', set)).status, 200)
  const other = await botica.createTenant('Ward <b>&\r\nBcc: x@example.org')
  await invite(other.admin, other.project.id, { email })
  const [, , joined] = await mailsTo(services, email)
  t.match(joined, { kind: 'welcome', subject: /^Botica: Welcome to Ward <b>& Bcc/ })
  t.match(joined?.text, `${services.config.appUrl}signin\n`)
  t.match(joined?.html, 'Ward &#60;b&#62;&#38;')
  const scoped = { email: anEmail(), scope: 'project' }
  const password = 'correct horse battery'
  t.equal((await invite(admin, projectId, { ...scoped, password })).status, 200)
  t.equal((await invite(admin, projectId, { ...scoped, forceNewMembership: true })).status, 200)
  const own = (await mailsTo(services, scoped.email)).at(-1)
  t.match(own, { kind: 'welcome', text: `signin?project_id=${projectId}\n` })
  for (const sendEmail of [false, 'false']) {
    const silent = anEmail()
    t.equal((await invite(admin, projectId, { email: silent, sendEmail })).status, 200)
    t.same(await mailsTo(services, silent), [])
  }
})

t.test('a given password is hashed; a known user keeps password and name', async (t) => {
  const email = anEmail()
  const given = { email, password: 'correct horse battery', mfaRequired: true }
  t.equal((await invite(superAdmin, projectId, given)).status, 200)
  const [before] = await findInvitedUsers(services, email)
  t.equal(before?.mfaRequired, true)
  t.equal(await verifyPassword('correct horse battery', String(before?.passwordHash)), true)
  const other = await botica.createTenant()
  const changes = { email, firstName: 'Other' }
  t.equal((await invite(other.admin, other.project.id, changes)).status, 200)
  t.same(await findInvitedUsers(services, email), [before])
})

t.test('the audit names the fields that were given, and no value', async (t) => {
  const externalId = `secret-subject-${randomUUID()}`
  const made = await invite(admin, projectId, { email: anEmail(), externalId, admin: true })
  const reference = `ProjectMembership/${made.body.id}`
  const found = await admin.get(`AuditEvent?entity=${reference}`)
  t.match(found.body.entry, [
    {
      resource: {
        subtype: [{ code: 'create' }],
        agent: [{ who: { reference: /^ClientApplication\// }, requestor: true }, {}],
        entity: [{ detail: [{ type: 'changed', valueString: 'admin' }] }],
      },
    },
  ])
  t.notMatch(found.text, externalId)
})

t.test('the SDK invites', async (t) => {
  const medplum = await openSdk(botica)
  const email = anEmail()
  const membership = await medplum.invite(projectId, {
    resourceType: 'Patient',
    firstName: 'Alice',
    lastName: 'Smith',
    email,
    sendEmail: false,
  })
  t.match(membership, {
    resourceType: 'ProjectMembership',
    profile: { reference: /^Patient\//, display: 'Alice Smith' },
  })
})
