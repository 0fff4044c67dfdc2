/** Imports the parser and the presentation of resources, to act as any principal. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { parseSearch } from '../../../shared/search/language/search.ts'
import { present } from '../../../shared/store/rows/rows.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { allowing, failureStatus, openTestStore, system } from '../../fixtures/store/store.ts'

const { repository, aMember } = await openTestStore(t)
const owner = await aMember()
const stranger = await aMember()
const strangerAdmin = await aMember({ isProjectAdmin: true })
const superAdmin = { ...(await aMember()), isSuperAdmin: true }
const page = { count: 10, offset: 0 }

t.test('returns 404 for resources of another Project', async (t) => {
  const { id } = await repository.create(owner, { resourceType: 'Patient' })
  for (const caller of [stranger, strangerAdmin]) {
    const attempts: Record<string, () => Promise<unknown>> = {
      read: () => repository.read(caller, 'Patient', id),
      vread: () => repository.readVersion(caller, 'Patient', id, '1'),
      history: () => repository.history(caller, 'Patient', id, page),
      update: () => repository.update(caller, { resourceType: 'Patient', id, active: true }),
      patch: () => repository.patch(caller, { type: 'Patient', id }, (current) => current),
      delete: () => repository.delete(caller, 'Patient', id),
    }
    for (const [name, attempt] of Object.entries(attempts)) {
      t.equal(await failureStatus(attempt()), 404, name)
    }
    t.same(await repository.readMany(caller, [{ type: 'Patient', id }]), [undefined])
    const found = await repository.search(caller, parseSearch('Patient', `_id=${id}`))
    t.same(found.versions, [])
  }
  t.match(await repository.read(owner, 'Patient', id), { ver: 1 })
})

t.test('allows one id in two Projects', async (t) => {
  const id = randomUUID()
  const [a, b] = await Promise.all([
    aMember({}, { updateAsCreate: true }),
    aMember({}, { updateAsCreate: true }),
  ])
  await repository.update(a, { resourceType: 'Patient', id, gender: 'male' })
  await repository.update(b, { resourceType: 'Patient', id, gender: 'female' })
  await repository.delete(a, 'Patient', id)
  t.match(JSON.parse((await repository.read(b, 'Patient', id)).content ?? ''), { gender: 'female' })
})

t.test('lets a super admin read, change and delete in every Project', async (t) => {
  const { id } = await repository.create(owner, { resourceType: 'Patient' })
  t.match(await repository.read(superAdmin, 'Patient', id), { ver: 1 })
  t.match(await repository.readVersion(superAdmin, 'Patient', id, '1'), { ver: 1 })
  t.match(await repository.history(superAdmin, 'Patient', id, page), { total: 1 })
  t.match(await repository.readMany(superAdmin, [{ type: 'Patient', id }]), [{ id }])
  const update = await repository.update(superAdmin, { resourceType: 'Patient', id, active: true })
  t.match(update, { ver: 2, metaExtension: new RegExp(`^"project":"${owner.project.id}"`) })
  t.match(await repository.read(owner, 'Patient', id), { ver: 2 })
  await repository.delete(superAdmin, 'Patient', id)
  t.equal(await failureStatus(repository.read(owner, 'Patient', id)), 410)
})

t.test('lets only a super admin write to another Project or as another author', async (t) => {
  const meta = { project: owner.project.id, author: { reference: 'Practitioner/x' } }
  const theirs = await repository.create(superAdmin, { resourceType: 'Patient', meta })
  t.match(await repository.read(owner, 'Patient', theirs.id), { id: theirs.id })
  t.match(theirs.metaExtension, /"author":{"reference":"Practitioner\/x"}/)
  const own = await repository.create(stranger, { resourceType: 'Patient', meta })
  t.equal(await failureStatus(repository.read(owner, 'Patient', own.id)), 404)
  t.notMatch(own.metaExtension, /Practitioner\/x/)
  const nowhere = { resourceType: 'Patient', meta: { project: randomUUID() } }
  t.equal(await failureStatus(repository.create(superAdmin, nowhere)), 400)
})

t.test('limits a super admin’s search to its Project unless it names one', async (t) => {
  const { id } = await repository.create(owner, { resourceType: 'Patient' })
  const search = parseSearch('Patient', `_id=${id}`)
  t.same((await repository.search(superAdmin, search)).versions, [])
  const named = {
    ...search,
    conditions: [
      ...search.conditions,
      {
        code: '_project',
        type: 'reference' as const,
        modifier: undefined,
        values: [`Project/${owner.project.id}`],
      },
    ],
  }
  t.match((await repository.search(superAdmin, named)).versions, [{ id }])
  t.same((await repository.search(stranger, named)).versions, [])
})

t.test('shows registry rows to the admins of their Project only', async (t) => {
  const admin = await aMember({ isProjectAdmin: true })
  const membership = await repository.create(
    { ...system, project: admin.project },
    { resourceType: 'ProjectMembership', profile: { reference: 'Practitioner/1' } },
  )
  const { id } = membership
  t.match(await repository.read(admin, 'ProjectMembership', id), { id })
  t.match(await repository.readMany(admin, [{ type: 'ProjectMembership', id }]), [{ id }])
  const all = parseSearch('ProjectMembership', '')
  t.match((await repository.search(admin, all)).versions, [{ id }])
  t.equal(await failureStatus(repository.read(strangerAdmin, 'ProjectMembership', id)), 404)
  t.equal(await failureStatus(repository.delete(strangerAdmin, 'ProjectMembership', id)), 404)
  t.same(await repository.readMany(strangerAdmin, [{ type: 'ProjectMembership', id }]), [undefined])
  t.same((await repository.search(strangerAdmin, all)).versions, [])
  t.equal(await failureStatus(repository.read(stranger, 'ProjectMembership', id)), 403)
  t.match((await repository.search(admin, parseSearch('Project', ''))).versions, [
    { id: admin.project.id },
  ])
  t.equal(await failureStatus(repository.read(strangerAdmin, 'Project', admin.project.id)), 404)
  t.match(await repository.read(superAdmin, 'ProjectMembership', id), { id })
})

t.test('rejects ungranted types before any statement', async (t) => {
  const reader = { ...owner, rules: allowing({ Patient: ['read'] }) }
  const { id } = await repository.create(owner, { resourceType: 'Patient' })
  t.match(await repository.read(reader, 'Patient', id), { id })
  const search = parseSearch('Patient', '')
  t.equal(await failureStatus(repository.search(reader, search)), 403)
  t.equal(await failureStatus(repository.create(reader, { resourceType: 'Patient' })), 403)
  t.equal(await failureStatus(repository.update(reader, { resourceType: 'Patient', id })), 403)
  t.equal(await failureStatus(repository.delete(reader, 'Patient', id)), 403)
  t.equal(await failureStatus(repository.history(reader, 'Patient', id, page)), 403)
  t.equal(await failureStatus(repository.read(reader, 'Observation', id)), 403)
})

t.test('never shows secrets and keeps them on writes of others', async (t) => {
  const admin = await aMember({ isProjectAdmin: true })
  const service = { ...system, project: admin.project }
  const user = await repository.create(service, {
    resourceType: 'User',
    firstName: 'A',
    email: 'a@example.com',
    passwordHash: 'hash',
  })
  t.match(user.content, /"passwordHash":"hash"/)
  for (const caller of [admin, superAdmin]) {
    const shown = present(await repository.read(caller, 'User', user.id), caller, true)
    t.notMatch(shown, /passwordHash/)
    t.match(shown, /"project"/)
  }
  const shown = JSON.parse(present(user, admin, false)) as Resource
  const changed = await repository.update(admin, {
    ...shown,
    firstName: 'B',
    email: 'b@x',
    passwordHash: 'no',
  })
  t.notMatch(changed.content, /passwordHash/)
  const stored = await repository.read(service, 'User', user.id)
  t.match(JSON.parse(stored.content ?? ''), {
    firstName: 'B',
    email: 'a@example.com',
    passwordHash: 'hash',
  })
  await repository.patch(admin, { type: 'User', id: user.id }, (current) => {
    t.notHas(current, 'passwordHash')
    return { ...current, firstName: 'C' }
  })
  t.match((await repository.read(service, 'User', user.id)).content, /"passwordHash":"hash"/)
})

t.test('shows the secret of a client to admins only', async (t) => {
  const member = await aMember()
  const admin = { ...member, isProjectAdmin: true }
  const client = await repository.create(admin, { resourceType: 'ClientApplication', secret: 's3' })
  t.notMatch(present(client, member, false), /s3/)
  t.match(present(client, admin, false), /s3/)
  const hidden = JSON.parse(present(client, member, false)) as Resource
  const written = await repository.update(member, { ...hidden, name: 'x' })
  t.notMatch(written.content, /s3/)
  t.match((await repository.read(admin, 'ClientApplication', client.id)).content, /"secret":"s3"/)
})
