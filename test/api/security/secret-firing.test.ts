/**
 * Members guess secrets and hidden fields by firing Subscriptions and by search parameters that a worker indexes.
 * Imports the system's rights, to store an old SearchParameter that writes now reject.
 */
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { system } from '../../../shared/access/project-context.ts'
import { ALL_QUEUES, openBotica, until } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import { aSubscription, extension, startReceiver } from '../../fixtures/http/receiver.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { aPatient, aSearchParameter } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const receiver = await startReceiver(t)
const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: ALL_QUEUES },
})
const { admin, adminCredentials, project, services, superAdmin } = botica
const PATIENCE_MS = 90_000
const [free, named, hiding] = await Promise.all([
  botica.createMember(),
  memberUnder(botica, { entries: [{ resourceType: 'Subscription' }, { resourceType: '*' }] }),
  memberUnder(botica, {
    entries: [{ resourceType: 'Patient', hiddenFields: ['birthDate'] }, { resourceType: '*' }],
  }),
])

/** Calls a path for every change in the criteria for which the expression is true. */
async function watch(client: Client, criteria: string, path: string, expression: string) {
  const answer = await client.post<Raw>(
    'Subscription',
    aSubscription(criteria, receiver.url + path, {
      extension: [extension('fhir-path-criteria-expression', expression)],
    }),
  )
  if (answer.status !== 201) throw new Error(answer.text)
}

/** Resolves when all deliveries of a change have arrived; they are sent together. */
async function settled(path: string, count: number): Promise<void> {
  await receiver.got(path, count)
  await until(async () => {
    const sql = 'select (select count(*) from delivery) + (select count(*) from outbox) as n'
    const rows = await services.database.query<{ n: string }>({ text: sql, values: [] })
    return rows[0]?.n === '0'
  }, PATIENCE_MS)
  await delay(100)
}

t.test('fires no expression of a member by the secret of a client', async (t) => {
  const secret = adminCredentials.secret
  const guesses = [secret.slice(0, 4), `z${secret.slice(1, 4)}`]
  for (const [name, { client }] of Object.entries({ free, named })) {
    for (const [i, guess] of guesses.entries()) {
      for (const [j, expression] of [
        `%current.secret.startsWith('${guess}')`,
        `%current.secret.empty() or %current.secret.startsWith('${guess}')`,
        `%previous.secret.startsWith('${guess}')`,
        `%previous.secret.exists() = false or descendants().where($this = '${secret}').exists()`,
      ].entries()) {
        await watch(client, 'ClientApplication', `/${name}/${i}/${j}`, expression)
      }
    }
    await watch(client, 'ClientApplication', `/${name}/all`, '%current.name.exists()')
  }
  const change = [{ op: 'add', path: '/description', value: 'changed' }]
  t.equal((await free.client.patch(`ClientApplication/${adminCredentials.id}`, change)).status, 200)
  await settled('/free/all', 1)
  await settled('/named/all', 1)
  for (const name of ['free', 'named']) {
    const fired = (i: number) => [0, 1, 2, 3].map((j) => receiver.on(`/${name}/${i}/${j}`).length)
    t.same(fired(0), [0, 1, 0, 1], 'as without a secret')
    t.same(fired(0), fired(1))
    t.notOk(receiver.on(`/${name}/all`).some(({ body }) => body.includes(secret)))
  }
})

t.test('fires no expression by the header or the signing secret of a Subscription', async (t) => {
  const watched = await admin.create(
    aSubscription('Basic', 'https://hook.example/', {
      channel: { header: ['Authorization: Bearer right'] },
      extension: [
        {
          url: 'https://www.medplum.com/fhir/StructureDefinition/subscription-secret',
          valueString: 'right',
        },
      ],
    }),
  )
  for (const guess of ['right', 'wrong']) {
    const header = `%current.channel.header.where($this.endsWith('${guess}')).exists()`
    const signing = `%current.extension.value.where($this = '${guess}').exists()`
    await watch(free.client, 'Subscription', `/header/${guess}`, header)
    await watch(free.client, 'Subscription', `/signing/${guess}`, signing)
  }
  await watch(free.client, 'Subscription', '/subscription', 'reason.exists()')
  const before = receiver.on('/subscription').length
  const change = [{ op: 'add', path: '/reason', value: 'changed' }]
  t.equal((await admin.patch(`Subscription/${watched.id}`, change)).status, 200)
  await settled('/subscription', before + 1)
  for (const kind of ['header', 'signing']) {
    t.equal(receiver.on(`/${kind}/right`).length, 0)
    t.equal(receiver.on(`/${kind}/wrong`).length, 0)
  }
})

t.test('reveals nothing of a hidden field by firing or not firing', async (t) => {
  const { client } = hiding
  await watch(client, 'Patient', '/silence', 'birthDate.empty() or birthDate < @1990-01-01')
  await watch(client, 'Patient', '/firing', 'birthDate < @1990-01-01')
  await watch(client, 'Patient', '/every', 'true')
  await watch(admin, 'Patient', '/admin', 'birthDate < @1990-01-01')
  await admin.create(aPatient({ birthDate: '1985-02-03' }))
  await admin.create(aPatient({ birthDate: '1995-02-03' }))
  await settled('/every', 2)
  t.equal(receiver.on('/silence').length, 2)
  t.equal(receiver.on('/firing').length, 0)
  t.equal(receiver.on('/admin').length, 1)
})

t.test('uses no version invisible to the author as the previous one', async (t) => {
  const entries = [{ resourceType: 'Patient', criteria: 'Patient?active=true' }]
  const { client } = await memberUnder(botica, {
    entries: [...entries, { resourceType: 'Subscription' }],
  })
  await watch(client, 'Patient', '/previous', "%previous.name.family = 'Unseen'")
  await watch(client, 'Patient', '/shown', '%current.exists()')
  const unseen = { active: false, name: [{ family: 'Unseen' }] }
  const { id } = await admin.create(aPatient(unseen))
  const change = [{ op: 'replace', path: '/active', value: true }]
  t.equal((await admin.patch(`Patient/${id}`, change)).status, 200)
  await settled('/shown', 1)
  t.equal(receiver.on('/previous').length, 0)
})

t.test('finds nothing by a secret through an older SearchParameter', async (t) => {
  const stored = (code: string, expression: string) =>
    aSearchParameter({ code, base: ['ClientApplication'], type: 'string', expression })
  const meta = { project: project.id }
  const old = { ...stored('own-secret', 'ClientApplication.secret'), meta }
  await services.repository.create(system, old)
  await admin.create(stored('own-name', 'ClientApplication.name'))
  const { body } = await superAdmin.get<Raw>(`ClientApplication/${adminCredentials.id}`)
  const count = async (query: string) => {
    const answer = await admin.get<Raw>(`ClientApplication?${query}`)
    return answer.status === 200 ? answer.body.entry?.length : answer.status
  }
  const name = encodeURIComponent(body.name)
  await until(async () => Number(await count(`own-name=${name}`)) < 400, PATIENCE_MS)
  const start = adminCredentials.secret.slice(0, 8)
  t.equal(await count(`own-secret=${start}`), 400)
  t.equal(await count(`own-secret:contains=${start}`), 400)
})
