/** Profiles and policies of two projects with the same ids, such as copies for trials and for production. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEmail, invite } from '../../fixtures/invites.ts'

const botica = await openBotica(t)
const { services, superAdmin } = botica
const trial = await botica.createTenant()
const tenants = [botica, trial]
for (const { project } of tenants) {
  const { body } = await superAdmin.get<Untyped>(`Project/${project.id}`)
  const systemSetting = [{ name: 'updateAsCreate', valueBoolean: true }]
  const put = await superAdmin.put(`Project/${project.id}`, { ...body, systemSetting })
  if (put.status !== 200) throw new Error(put.text)
}
services.principals.forget()

/** Stores the resources in the two projects under one id, and returns the reference to them. */
async function copies(...resources: readonly Resource[]): Promise<string> {
  const id = randomUUID()
  const references = resources.map(async ({ resourceType, ...rest }, i) => {
    const reference = `${resourceType}/${id}`
    const put = await tenants[i]?.admin.put(reference, { ...rest, resourceType, id })
    if (put?.status !== 201) throw new Error(put?.text)
    return reference
  })
  return (await Promise.all(references))[0] ?? ''
}

const named = (given: string) => ({
  resourceType: 'Practitioner',
  name: [{ given: [given], family: 'Lee' }],
})

t.test('names members by the profiles of their own project in SCIM', async (t) => {
  const reference = await copies(named('Ours'), named('Theirs'))
  for (const [i, givenName] of ['Ours', 'Theirs'].entries()) {
    const { admin, project } = tenants[i] ?? botica
    const changes = { email: anEmail(), sendEmail: false, membership: { profile: { reference } } }
    const { body } = await invite(admin, project.id, changes)
    const path = `/scim/v2/Users/${body.id}`
    t.match((await admin.get(path)).body, { name: { givenName } })
    const Operations = [{ op: 'replace', path: 'name.familyName', value: `New ${givenName}` }]
    const type = { 'Content-Type': 'application/scim+json', 'If-Match': '*' }
    const patched = await admin.patch(path, JSON.stringify({ Operations }), type)
    t.match(patched, { status: 200, body: { name: { givenName, familyName: `New ${givenName}` } } })
  }
})

t.test('changes an address in the profile of the project of the user alone', async (t) => {
  const reference = await copies(named('Ours'), named('Theirs'))
  for (const { admin, project } of tenants) {
    const others = tenants.filter((other) => other.project !== project)
    const before = await Promise.all(others.map((other) => other.admin.get(reference)))
    const changes = { scope: 'project', sendEmail: false, membership: { profile: { reference } } }
    const { body } = await invite(admin, project.id, { email: anEmail(), ...changes })
    const email = anEmail()
    const changed = await admin.post(`${body.user.reference}/$update-email`, {
      resourceType: 'Parameters',
      parameter: [
        { name: 'email', valueString: email },
        { name: 'updateProfileTelecom', valueBoolean: true },
      ],
    })
    t.equal(changed.status, 200)
    t.match((await admin.get<Untyped>(reference)).body.telecom, [{ value: email, use: 'work' }])
    const after = await Promise.all(others.map((other) => other.admin.get(reference)))
    t.same(
      after.map((answer) => answer.body),
      before.map((answer) => answer.body),
    )
  }
})

t.test('gives members, clients and bots the policy of their own project', async (t) => {
  const policy = { resourceType: 'AccessPolicy', resource: [{ resourceType: 'Patient' }] }
  const accessPolicy = { reference: await copies(policy, policy) }
  for (const { admin, project } of tenants) {
    const changes = { email: anEmail(), sendEmail: false, accessPolicy }
    const invited = await invite(admin, project.id, changes)
    t.match(invited, { status: 200, body: { accessPolicy } })
    for (const type of ['client', 'bot']) {
      const path = `/admin/projects/${project.id}/${type}`
      const made = await admin.post(path, { name: 'Named', accessPolicy })
      t.equal(made.status, 201, made.text)
    }
  }
  const copy = await copies(policy, policy)
  const changes = { email: anEmail(), sendEmail: false, accessPolicy: { reference: copy } }
  t.equal((await invite(botica.admin, botica.project.id, changes)).status, 200)
  t.equal((await botica.admin.del(copy)).status, 400)
  t.equal((await trial.admin.del(copy)).status, 200, 'no member there has it')
})

t.test('rejects the policies of a linked project, which would grant nothing', async (t) => {
  const policy = { resourceType: 'AccessPolicy', resource: [{ resourceType: 'Patient' }] }
  const { id } = await botica.admin.create(policy)
  const link = [{ project: { reference: `Project/${botica.project.id}` } }]
  const linking = await superAdmin.get<Untyped>(`Project/${trial.project.id}`)
  const put = await superAdmin.put(`Project/${trial.project.id}`, { ...linking.body, link })
  t.equal(put.status, 200)
  services.principals.forget()
  const { admin, project } = trial
  t.equal((await admin.get(`AccessPolicy/${id}`)).status, 200)
  const accessPolicy = { reference: `AccessPolicy/${id}` }
  const missing = {
    status: 400,
    body: { issue: [{ details: { text: `Access policy AccessPolicy/${id} does not exist` } }] },
  }
  const changes = { email: anEmail(), sendEmail: false, accessPolicy }
  t.match(await invite(admin, project.id, changes), missing)
  const client = { name: 'Named', accessPolicy }
  t.match(await admin.post(`/admin/projects/${project.id}/client`, client), missing)
})
