/** All attempts of an event's run have the code of the first one, also after a deploy. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, deploy, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { justNow, miss } from '../../fixtures/bots/schedules.ts'
import { aSubscription, extension } from '../../fixtures/http/receiver.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: {
    DATABASE_URL: await createDatabase(t),
    WORKER_QUEUES: 'bots-sync,bots-async,change,schedules',
  },
})
const { admin, services } = botica

async function count(code: string): Promise<number> {
  const { body } = await admin.get<Untyped>(`Basic?code=${code}&_summary=count`)
  return body.total
}

const mark = (code: string) => admin.create(aMark(code))
const aMark = (code: string) => ({ resourceType: 'Basic', code: { coding: [{ code }] } })

/** The first attempt fails once the code `go-on` is there; later ones leave a mark. */
const failingOnce = (name: string) =>
  handler(`
    const mark = (code) =>
      medplum.createResource({ resourceType: 'Basic', code: { coding: [{ code }] } })
    if (event.attempt > 1) return await mark('${name}-old')
    await mark('${name}-begun')
    while ((await medplum.searchResources('Basic', 'code=${name}-go-on')).length === 0);
    throw new Error('again')`)

const leavingMark = (name: string) =>
  handler(`await medplum.createResource(${JSON.stringify(aMark(`${name}-new`))})`)

/** Deploys other code between the first attempt and the second. */
async function deployBetween(id: string, name: string): Promise<void> {
  await until(async () => (await count(`${name}-begun`)) === 1, 90_000)
  await deploy(admin, id, leavingMark(name))
  await mark(`${name}-go-on`)
  await until(async () => (await count(`${name}-old`)) === 1, 90_000)
}

t.test('a delivery is repeated with its code, and the next one has the new code', async (t) => {
  const id = await aBot(botica, failingOnce('delivery'))
  await admin.create(aSubscription('Patient', `Bot/${id}`))
  await admin.create({ resourceType: 'Patient' })
  await deployBetween(id, 'delivery')
  t.equal(await count('delivery-new'), 0)
  await admin.create({ resourceType: 'Patient' })
  await until(async () => (await count('delivery-new')) === 1, 90_000)
})

t.test('a delivery that is replayed has the new code', async (t) => {
  const id = await aBot(botica, handler(`throw new Error('no')`))
  const attempts = extension('subscription-max-attempts', 1)
  await admin.create(aSubscription('Device', `Bot/${id}`, { extension: [attempts] }))
  await admin.create({ resourceType: 'Device' })
  const path = `Bot/$dead-letters?kind=delivery&target=Bot/${id}`
  await until(async () => (await admin.get(path)).text.includes('letter'), 90_000)
  await deploy(admin, id, leavingMark('replayed'))
  await admin.post('Bot/$replay', { kind: 'delivery', target: `Bot/${id}` })
  await until(async () => (await count('replayed-new')) === 1, 90_000)
  t.equal(await count('replayed-new'), 1)
})

t.test('a delivery whose bot had no code runs as soon as it has', async (t) => {
  const id = await aBot(botica)
  const subscription = await admin.create(aSubscription('Organization', `Bot/${id}`))
  const path = `AuditEvent?entity=Subscription/${subscription.id}`
  await admin.create({ resourceType: 'Organization', name: 'Clinic' })
  await until(async () => (await admin.get(path)).text.includes('No executable code'), 90_000)
  await deploy(admin, id, leavingMark('late'))
  await until(async () => (await count('late-new')) === 1, 90_000)
  t.equal(await count('late-new'), 1)
})

t.test('a later attempt has no secret that its bot has lost', async (t) => {
  const { superAdmin, project } = botica
  const current = await superAdmin.get<Untyped>(`Project/${project.id}`)
  const secret = [{ name: 'LAB_KEY', valueString: 'key of the laboratory' }]
  await superAdmin.put(`Project/${project.id}`, { ...current.body, secret })
  const code = `
    const mark = (code) =>
      medplum.createResource({ resourceType: 'Basic', code: { coding: [{ code }] } })
    if (event.attempt > 1) return await mark('secrets-' + Object.keys(event.secrets).length)
    await mark('secrets-begun')
    while ((await medplum.searchResources('Basic', 'code=secrets-go-on')).length === 0);
    throw new Error('again')`
  const id = await aBot(botica, handler(code))
  await admin.create(aSubscription('Location', `Bot/${id}`))
  await admin.create({ resourceType: 'Location' })
  await until(async () => (await count('secrets-begun')) === 1, 90_000)
  const { body } = await admin.get<Untyped>(`Bot/${id}`)
  const extension = [{ url: 'urn:botica:bot-secret', valueString: 'OTHER_KEY' }]
  t.equal((await admin.put(`Bot/${id}`, { ...body, extension })).status, 200)
  await mark('secrets-go-on')
  await until(async () => (await count('secrets-0')) + (await count('secrets-1')) > 0, 90_000)
  t.equal(await count('secrets-0'), 1)
})

t.test('an occurrence of a schedule is repeated with its code', async (t) => {
  const id = await aBot(botica, failingOnce('cron'), {
    fields: { cronString: justNow().cronString },
  })
  await miss(services, id)
  await deployBetween(id, 'cron')
  t.equal(await count('cron-old'), 1)
})
