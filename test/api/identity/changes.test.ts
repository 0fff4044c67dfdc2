/**
 * Cache invalidation: changes take effect at once in their process and soon in others. Imports the repository, to
 * write as a process without messages.
 */
import './long-sessions.ts'
import { rmSync } from 'node:fs'
import t from 'tap'
import { temporaryFolder } from '../../../scripts/account.ts'
import { prepare } from '../../../scripts/migrate.ts'
import { startPostgres } from '../../../scripts/postgres.ts'
import { system } from '../../../shared/access/project-context.ts'
import { writeFeatures } from '../../../shared/api/write-features.ts'
import { readConfig } from '../../../shared/core/config/config.ts'
import { openRepository } from '../../../shared/store/open-repository.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, deploy, eventually, execute, handler } from '../../fixtures/bots/bots.ts'
import { type Client, signIn } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { aPatient, aSearchParameter } from '../../fixtures/resources.ts'

// The index of a new parameter waits for older transactions of all databases, so this file has a separate PostgreSQL.
const folder = temporaryFolder('botica-changes-')
const postgres = await startPostgres({ folder, sharedBuffersMb: 64, durable: false })
t.teardown(async () => {
  await postgres.stop()
  rmSync(folder, { recursive: true, force: true })
})
const env = { DATABASE_URL: postgres.url }
await prepare(readConfig({ ...process.env, ...env }))
const botica = await openBotica(t, { worker: true, env })
const { admin, adminCredentials, superAdmin, services } = botica
const elsewhere = await botica.startWeb()
const adminElsewhere = await signIn(elsewhere, adminCredentials.id, adminCredentials.secret)
const DEADLINE_MS = 60_000

/** A member under a policy, with a session in both processes. */
async function memberInBoth(entry: object = { resourceType: 'Patient' }) {
  const policy = await admin.create({ resourceType: 'AccessPolicy', name: 'x', resource: [entry] })
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const { id, secret } = await botica.createMember({ accessPolicy })
  const clients = [await signIn(botica.baseUrl, id, secret), await signIn(elsewhere, id, secret)]
  for (const client of clients) t.equal((await client.get('Patient')).status, 200)
  const [here, there] = clients as [Client, Client]
  return { id, secret, policy, here, there }
}

const readStatus = async (client: Client, path: string) => (await client.get(path)).status

function soon(client: Client, path: string, status: number): Promise<void> {
  return until(async () => (await readStatus(client, path)) === status, DEADLINE_MS)
}

async function readMembership(profile: string): Promise<Resource> {
  const { body } = await superAdmin.get<Raw>(`ProjectMembership?profile=${profile}`)
  return body.entry[0].resource
}

t.test('applies a changed policy immediately, and soon in other processes', async (t) => {
  const { policy, here, there } = await memberInBoth()
  await admin.put(`AccessPolicy/${policy.id}`, {
    ...policy,
    resource: [{ resourceType: 'Observation' }],
  })
  t.equal(await readStatus(here, 'Patient'), 403)
  t.equal(await readStatus(here, 'Observation'), 200)
  await soon(there, 'Patient', 403)
  t.equal(await readStatus(there, 'Observation'), 200)
})

t.test('applies a changed membership and client status immediately', async (t) => {
  const first = await memberInBoth()
  const membership = await readMembership(`ClientApplication/${first.id}`)
  const ended = { ...membership, active: false }
  t.equal((await superAdmin.put(`ProjectMembership/${membership.id}`, ended)).status, 200)
  t.equal(await readStatus(first.here, 'Patient'), 401)
  await soon(first.there, 'Patient', 401)

  const second = await memberInBoth()
  const { body: client } = await admin.get<Raw>(`ClientApplication/${second.id}`)
  t.equal(
    (await admin.put(`ClientApplication/${second.id}`, { ...client, status: 'off' })).status,
    200,
  )
  t.equal(await readStatus(second.here, 'Patient'), 401)
  await soon(second.there, 'Patient', 401)
})

t.test('applies a removed membership and a new secret immediately', async (t) => {
  const { id, secret, here, there } = await memberInBoth()
  const { body } = await admin.post<Raw>(`ClientApplication/${id}/$rotate-secret`, {
    resourceType: 'Parameters',
    parameter: [{ name: 'secret', valueString: secret }],
  })
  const rotated = body.secret
  t.not(rotated, secret)
  await t.resolves(signIn(botica.baseUrl, id, rotated))
  await t.resolves(signIn(elsewhere, id, rotated))
  const membership = await readMembership(`ClientApplication/${id}`)
  await superAdmin.del(`ProjectMembership/${membership.id}`)
  t.equal(await readStatus(here, 'Patient'), 401)
  await soon(there, 'Patient', 401)
})

t.test(
  'accepts a new search parameter immediately, and finds by it in all processes soon',
  async (t) => {
    for (const client of [admin, adminElsewhere])
      t.equal(await readStatus(client, 'Patient?tongue=de'), 400)
    const before = await admin.create(aPatient({ language: 'de' }))
    await admin.create(aSearchParameter())
    const { body } = await admin.get<Raw>('Patient?tongue=de')
    t.notMatch(JSON.stringify(body), 'Unknown search parameter')
    for (const client of [admin, adminElsewhere]) await soon(client, 'Patient?tongue=de', 200)
    const after = await adminElsewhere.create(aPatient({ language: 'de' }))
    const found = await admin.get<Raw>('Patient?tongue=de')
    const ids = found.body.entry.map((entry: Raw) => entry.resource.id)
    t.same(ids.toSorted(), [before.id, after.id].toSorted())
  },
)

t.test('a deployed bot soon runs in every process, under its latest policy', async (t) => {
  const id = await aBot(botica, handler('return "one"'))
  for (const client of [admin, adminElsewhere]) t.equal((await execute(client, id)).body, 'one')
  await deploy(admin, id, handler('return (await medplum.searchResources("Patient")).length >= 0'))
  t.equal((await execute(admin, id)).body, true)
  await until(async () => (await execute(adminElsewhere, id)).body === true, DEADLINE_MS)

  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    resource: [{ resourceType: 'Observation' }],
  })
  const membership = await readMembership(`Bot/${id}`)
  await superAdmin.put(`ProjectMembership/${membership.id}`, {
    ...membership,
    access: [{ policy: { reference: `AccessPolicy/${policy.id}` } }],
  })
  // The worker has the session of the bot.
  await eventually(async () => ((await execute(admin, id)).status === 400 ? true : undefined))
})

t.test('reloads everything after a missed change', async (t) => {
  const { policy, here, there } = await memberInBoth()
  const deaf = await openRepository(services.database, writeFeatures())
  await deaf.patch(system, { type: 'AccessPolicy', id: policy.id }, (now) => ({
    ...now,
    resource: [{ resourceType: 'Observation' }],
  }))
  for (const client of [here, there]) t.equal(await readStatus(client, 'Patient'), 200)

  const { redis } = services
  const listed = String(await redis.call('CLIENT', 'LIST', 'TYPE', 'pubsub'))
  const own = listed.split('\n').filter((line) => line.includes(` db=${redis.options.db} `))
  t.ok(own.length > 0)
  for (const line of own) {
    const id = /^id=(\d+)/.exec(line)?.[1] ?? ''
    await redis.call('CLIENT', 'KILL', 'ID', id)
  }
  for (const client of [here, there]) await soon(client, 'Patient', 403)
})
