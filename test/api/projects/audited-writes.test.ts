/** A write of a Project, ProjectMembership or User commits with its AuditEvent and its effects, or not at all. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { type Botica, openBotica, type Tenant } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { changedEveryWay } from '../../fixtures/http/write-paths.ts'
import { anEmail, mailsTo } from '../../fixtures/invites.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { aPerson, askToken, PASSWORD, pkce, redeemCode } from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { superAdmin, anonymous, services } = botica

/** Lets PostgreSQL reject rows whose text contains all `marks`, as a full disk would, until the returned call. */
async function rejectRows(
  { services: { database } }: Botica,
  ...marks: readonly string[]
): Promise<() => Promise<unknown>> {
  const name = `rejecting_${randomUUID().replaceAll('-', '')}`
  const run = (text: string) => database.query({ text, values: [] })
  const isMarked = marks.map((mark) => `strpos(new.content, '${mark}') > 0`).join(' and ')
  await run(`create function ${name}() returns trigger language plpgsql as $$ begin
    if ${isMarked} then raise exception 'no room' using errcode = '53100'; end if;
    return new;
  end $$`)
  await run(`create trigger ${name} before insert on version
    for each row execute function ${name}()`)
  return () => run(`drop function if exists ${name} cascade`)
}

type Stored = Resource & { readonly id: string }

async function firstMembership({ admin }: Tenant): Promise<Stored> {
  const { body } = await admin.get<Raw>('ProjectMembership?profile-type=ClientApplication')
  return body.entry[0].resource
}

function aMembership(projectId: string, user: string, profile: string): Resource {
  return {
    resourceType: 'ProjectMembership',
    project: { reference: `Project/${projectId}` },
    user: { reference: user },
    profile: { reference: profile },
  }
}

t.test('writes nothing on any path while the AuditEvent cannot be written', async (t) => {
  const tenant = await botica.createTenant()
  const { admin, project } = tenant
  const client = await botica.createMember({}, project.id)
  const membership = await firstMembership(tenant)
  const before = [membership, (await admin.get<Stored>(`Project/${project.id}`)).body]
  const allow = await rejectRows(botica, '"AuditEvent"', `Project/${project.id}`)
  t.teardown(allow)
  for (const [current, changes] of [
    [membership, { externalId: randomUUID() }],
    [before[1] as Stored, { description: 'Changed' }],
  ] as const) {
    for (const [way, status] of await changedEveryWay(admin, current, changes)) {
      t.ok(status >= 500, `${current.resourceType} ${way}: ${status}`)
    }
  }
  const profile = `ClientApplication/${client.id}`
  const second = aMembership(project.id, profile, profile)
  const path = `ProjectMembership/${membership.id}`
  const entry = [{ request: { method: 'DELETE', url: `ProjectMembership?_id=${membership.id}` } }]
  const batch = await admin.post<Raw>('', { resourceType: 'Bundle', type: 'batch', entry })
  const query = `mutation { ProjectMembershipDelete(id: "${membership.id}") { id } }`
  const mutation = await admin.post<Raw>('$graphql', { query })
  const statuses = {
    create: (await admin.post('ProjectMembership', second)).status,
    conditionalCreate: (
      await admin.post('ProjectMembership', second, { 'If-None-Exist': `_id=${randomUUID()}` })
    ).status,
    delete: (await admin.del(path)).status,
    conditionalDelete: (await admin.del(`ProjectMembership?_id=${membership.id}`)).status,
    deleteInBatch: Number.parseInt(batch.body.entry[0].response.status, 10),
    deleteByGraphql: Number(mutation.body.errors?.[0]?.extensions.status),
  }
  for (const [way, status] of Object.entries(statuses)) t.ok(status >= 500, `${way}: ${status}`)

  await allow()
  for (const { resourceType, id, meta } of before) {
    t.match((await admin.get(`${resourceType}/${id}`)).body, { meta })
  }
  const found = await admin.get<Raw>(`ProjectMembership?profile=${profile}`)
  t.equal(found.body.entry.length, 1)
  const changed = await admin.patch(path, [{ op: 'add', path: '/externalId', value: 'x' }])
  t.equal(changed.status, 200, changed.text)
  const events = await admin.get(`AuditEvent?entity=${path}`)
  t.match(events.body, { entry: [{ resource: { subtype: [{ code: 'update' }] } }] })
})

async function aStranger() {
  const foreign = await botica.createTenant()
  const person = await aPerson(services, foreign.project, { email: anEmail(), isStranger: true })
  const practitioner = await botica.admin.create({ resourceType: 'Practitioner' })
  const membership = aMembership(
    botica.project.id,
    `User/${person.user.id}`,
    `Practitioner/${practitioner.id}`,
  )
  const logIn = () =>
    anonymous.post('/auth/login', { email: person.email, password: PASSWORD, scope: 'openid' })
  return { ...person, membership, logIn }
}

t.test('adds no member whose unproven credentials cannot be voided', async (t) => {
  const { membership, user, email, logIn } = await aStranger()
  const allow = await rejectRows(botica, '"User"', email)
  t.teardown(allow)
  t.ok((await superAdmin.post('ProjectMembership', membership)).status >= 500)
  await allow()
  const found = await superAdmin.get<Raw>(
    `ProjectMembership?user=User/${user.id}&project=Project/${botica.project.id}`,
  )
  t.equal(found.body.entry, undefined)
  t.equal((await logIn()).status, 200)
  t.equal((await superAdmin.post('ProjectMembership', membership)).status, 201)
  t.equal((await logIn()).status, 400)
  t.match(await mailsTo(services, email), [{ kind: 'invite' }])
})

t.test('ends the sessions of a deleted user', async (t) => {
  const { user, email } = await aPerson(services, botica.project)
  const { asked, verifier } = pkce()
  const fields = { email, password: PASSWORD, scope: 'openid offline', ...asked }
  const login = await anonymous.post<Raw>('/auth/login', fields)
  const { body } = await redeemCode(botica.baseUrl, login.body.code, verifier)
  const client = createClient(botica.baseUrl, body.access_token)
  t.equal((await client.get('Patient')).status, 200)
  t.equal((await superAdmin.del(`User/${user.id}`)).status, 200)
  t.equal((await client.get('Patient')).status, 401)
  const renewal = { grant_type: 'refresh_token', refresh_token: body.refresh_token }
  t.match(await askToken(botica.baseUrl, renewal), { body: { error: 'invalid_grant' } })
})

t.test('sends no mail about a member of a rejected transaction', async (t) => {
  const { membership, email, logIn } = await aStranger()
  const entry = [
    { request: { method: 'POST', url: 'ProjectMembership' }, resource: membership },
    { request: { method: 'PATCH', url: `Patient/${randomUUID()}` }, resource: aPatch() },
  ]
  const answer = await superAdmin.post('', { resourceType: 'Bundle', type: 'transaction', entry })
  t.equal(answer.status, 404, answer.text)
  t.same(await mailsTo(services, email), [])
  t.equal((await logIn()).status, 200)
})

function aPatch(): Resource {
  const data = Buffer.from('[]').toString('base64')
  return { resourceType: 'Binary', contentType: 'application/json-patch+json', data }
}
