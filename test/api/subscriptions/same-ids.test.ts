/**
 * Subscriptions and resources with the ids of another project's, or by an author with the id of a profile there. Imports
 * the store of deliveries, to add a batch of several projects, and the principal of the service, to store clients as
 * earlier versions did.
 */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { system } from '../../../shared/access/project-context.ts'
import { addDeliveries } from '../../../shared/subscriptions/new-deliveries.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { aSubscription } from '../../fixtures/http/receiver.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const PATIENCE_MS = 90_000
const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: 'bots-sync,change' },
})
const { admin, adminCredentials, project, services, superAdmin } = botica
const other = await botica.createTenant()

const bot = await aBot(
  botica,
  handler(
    `await medplum.createResource({ resourceType: 'Basic', code: { text: event.input.gender } })`,
  ),
)

async function runs(): Promise<readonly string[]> {
  const { body } = await admin.get<Untyped>('Basic?_sort=_lastUpdated')
  return (body.entry ?? []).map(({ resource }: Untyped) => resource.code.text)
}

/** Stores a client with this id and its membership in the other project; returns the membership. */
async function aCopy(id: string): Promise<string> {
  const client = { resourceType: 'ClientApplication', id, name: 'Copy' }
  const meta = { project: other.project.id }
  await services.repository.create(system, { ...client, meta }, { keepId: true })
  const profile = { reference: `ClientApplication/${id}` }
  const membership = await other.admin.post('ProjectMembership', {
    resourceType: 'ProjectMembership',
    project: { reference: `Project/${other.project.id}` },
    user: profile,
    profile,
  })
  t.equal(membership.status, 201, membership.text)
  return String(membership.body.id)
}

t.test('delivers to an author whose membership is the younger of two', async (t) => {
  await admin.create(aSubscription('Patient?gender=other', `Bot/${bot}`))
  await aCopy(adminCredentials.id)
  // The time of the last change decides which is the younger.
  const found = await superAdmin.get<Untyped>(
    `ProjectMembership?profile=ClientApplication/${adminCredentials.id}&project=Project/${project.id}`,
  )
  const { resource } = found.body.entry[0]
  const changed = { ...resource, identifier: [{ system: 'urn:test', value: 'younger' }] }
  t.equal((await superAdmin.put(`ProjectMembership/${resource.id}`, changed)).status, 200)
  services.principals.forget()
  await admin.create({ resourceType: 'Patient', gender: 'other' })
  await until(async () => (await runs()).length === 1, PATIENCE_MS)
})

t.test('delivers to a super admin in another project', async (t) => {
  const made = await superAdmin.post('Subscription', {
    ...aSubscription('Patient?gender=female', `Bot/${bot}`),
    meta: { project: project.id },
  })
  t.equal(made.status, 201, made.text)
  await admin.create({ resourceType: 'Patient', gender: 'female' })
  await until(async () => (await runs()).length === 2, PATIENCE_MS)
})

t.test('gives the copy of a super admin’s client no rights of the super admin', async (t) => {
  const id = String(services.config.superAdminClientId)
  const membership = await aCopy(id)
  const made = await superAdmin.post('Subscription', {
    ...aSubscription('Patient?gender=male', `Bot/${bot}`),
    meta: { project: other.project.id, author: { reference: `ClientApplication/${id}` } },
  })
  t.equal(made.status, 201, made.text)
  t.equal((await other.admin.del(`ProjectMembership/${membership}`)).status, 200)
  services.principals.forget()
  await other.admin.create({ resourceType: 'Patient', gender: 'male' })
  await until(async () => {
    const [state] = await services.database.query<{ orphan: boolean }>({
      text: 'select orphan_since is not null as orphan from subscription_state where subscription = $1',
      values: [made.body.id],
    })
    return state?.orphan === true
  }, PATIENCE_MS)
  t.same(await runs(), ['other', 'female'])
})

t.test('debounces changes of two projects with the same ids separately', async (t) => {
  const [subscription, id] = [randomUUID(), randomUUID()]
  const aDelivery = (project: number, ver: number): Untyped => ({
    event: {
      project,
      seq: '1',
      change: 'update',
      type: 'Patient',
      subject: { id },
      ver,
      origin: '{}',
    },
    subscription,
    target: 'Bot/x',
    isTopic: false,
    debounceMs: 60_000,
  })
  // The deliveries of one batch of changes; the transaction is rolled back.
  const undone = new Error('undone')
  const adding = services.database.transaction(async (connection) => {
    await addDeliveries(connection, [aDelivery(1, 2), aDelivery(2, 2), aDelivery(1, 3)])
    const added = await connection.query<Untyped>({
      text: 'select project, ver, replaced from delivery where subscription = $1 order by project',
      values: [subscription],
    })
    t.match(added, [
      { project: 1, ver: 3, replaced: 1 },
      { project: 2, ver: 2, replaced: 0 },
    ])
    throw undone
  })
  await t.rejects(adding, undone)
})
