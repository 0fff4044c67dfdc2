/** Pre-commit bots: their changes, rejections and results without effect. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, statementsAsked, until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { asked, switchOn } from '../../fixtures/bots/pre-commit.ts'
import { aSubscription, extension } from '../../fixtures/http/receiver.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const SECONDS = 30_000
const botica = await openBotica(t, {
  worker: true,
  env: {
    DATABASE_URL: await createDatabase(t),
    WORKER_QUEUES: 'bots-sync,change',
    PRE_COMMIT_BOTS: 'true',
  },
})
const { admin } = botica
await switchOn(botica, botica)

const total = async (query: string): Promise<number> =>
  (await admin.get<Untyped>(`${query}&_total=accurate&_summary=count`)).body.total

await asked(
  botica,
  'Organization',
  `const { input, headers } = event
   if (input.deletedResource?.name.startsWith('kept')) throw new Error('It is to be kept')
   if (input.deletedResource) return { ...input.deletedResource, name: 'never' }
   if (input.name === 'bad') throw new Error('No such name')
   return { ...input, alias: [headers['x-medplum-interaction'] + ' ' + input.id] }`,
)

t.test('stores the resource returned by a bot on create, update and patch', async (t) => {
  const made = await admin.post<Untyped>('Organization', {
    resourceType: 'Organization',
    name: 'first',
  })
  t.equal(made.status, 201)
  const { id } = made.body
  t.match(made.body, { name: 'first', alias: [`create ${id}`], meta: { versionId: '1' } })

  const put = await admin.put<Untyped>(`Organization/${id}`, { ...made.body, name: 'second' })
  t.match(put, { status: 200, body: { name: 'second', alias: [`update ${id}`] } })

  const path = '/name'
  const patched = await admin.patch<Untyped>(`Organization/${id}`, [
    { op: 'replace', path, value: 'third' },
    { op: 'remove', path: '/alias' },
  ])
  t.match(patched, { status: 200, body: { name: 'third', alias: [`update ${id}`] } })
  t.equal((await admin.get<Untyped>(`Organization/${id}`)).body.meta.versionId, '3')

  const tag = [{ system: 'urn:tags', code: 'seen' }]
  const parameter = [{ name: 'meta', valueMeta: { tag } }]
  await admin.patch(`Organization/${id}`, [{ op: 'remove', path: '/alias' }])
  await admin.post(`Organization/${id}/$meta-add`, { resourceType: 'Parameters', parameter })
  const tagged = await admin.get(`Organization/${id}`)
  t.match(tagged.body, { meta: { tag }, alias: [`update ${id}`] })
})

t.test('rejects a write with the error thrown by the bot, and stores nothing', async (t) => {
  const bad = { resourceType: 'Organization', name: 'bad' }
  const made = await admin.post<Untyped>('Organization', bad)
  t.equal(made.status, 400)
  t.equal(made.body.issue[0].details.text, 'No such name')
  const { id } = await admin.create({ ...bad, name: 'good' })
  t.match(await admin.put(`Organization/${id}`, { ...bad, id }), { status: 400 })
  const rename = [{ op: 'replace', path: '/name', value: 'bad' }]
  t.match(await admin.patch(`Organization/${id}`, rename), { status: 400 })
  t.match(await admin.get(`Organization/${id}`), {
    body: { name: 'good', meta: { versionId: '1' } },
  })
  t.equal(await total('Organization?name=bad'), 0)
})

t.test('runs for a deletion, which a bot may reject but not change', async (t) => {
  const { id: kept } = await admin.create({ resourceType: 'Organization', name: 'kept' })
  const { id: gone } = await admin.create({ resourceType: 'Organization', name: 'gone' })
  t.match(await admin.del(`Organization/${kept}`), { status: 400 })
  t.match(await admin.get(`Organization/${kept}`), { status: 200 })
  t.match(await admin.del(`Organization/${gone}`), { status: 200 })
  t.match(await admin.get(`Organization/${gone}`), { status: 410 })
  t.match(await admin.del('Organization?name=kept'), { status: 400 })
  t.match(await admin.del(`Organization/${gone}`), { status: 200 })
})

t.test('runs for a conditional deletion when a linked Project has a match, too', async (t) => {
  const shared = await botica.createTenant()
  const path = `Project/${botica.project.id}`
  const { body } = await botica.superAdmin.get<Untyped>(path)
  const link = [{ project: { reference: `Project/${shared.project.id}` } }]
  t.equal((await botica.superAdmin.put(path, { ...body, link })).status, 200)
  botica.services.principals.forget()
  const organization = { resourceType: 'Organization', name: 'kept by both' }
  await shared.admin.create(organization)
  const { id } = await admin.create(organization)
  t.equal(await total('Organization?name=kept by both'), 2)
  t.match(await admin.del('Organization?name=kept by both'), { status: 400 })
  t.equal((await admin.get(`Organization/${id}`)).status, 200)
  t.equal((await botica.superAdmin.put(path, body)).status, 200)
  botica.services.principals.forget()
})

t.test('runs for the resources that conditional writes create or change', async (t) => {
  const named = (name: string) => ({ resourceType: 'Organization', name })
  const once = { 'If-None-Exist': 'name=once' }
  const first = await admin.post<Untyped>('Organization', named('once'), once)
  t.match(first, { status: 201, body: { alias: [`create ${first.body.id}`] } })
  const again = await admin.post<Untyped>('Organization', named('bad'), once)
  t.match(again, { status: 200, body: { id: first.body.id } })

  const made = await admin.put<Untyped>('Organization?name=upsert', named('upsert'))
  t.match(made, { status: 201, body: { alias: [`create ${made.body.id}`] } })
  const changed = await admin.put<Untyped>('Organization?name=upsert', named('upsert too'))
  t.match(changed, { status: 200, body: { alias: [`update ${made.body.id}`] } })
  t.match(await admin.put('Organization?name=upsert', named('bad')), { status: 400 })
})

t.test('lets clients choose no id by a conditional write that asks bots', async (t) => {
  const id = randomUUID()
  const chosen = (name: string) => ({ resourceType: 'Organization', name, id })
  t.equal((await admin.put('Organization?name=chosen', chosen('chosen'))).status, 400)
  const once = { 'If-None-Exist': 'name=free' }
  const { status, body } = await admin.post<Untyped>('Organization', chosen('free'), once)
  t.equal(status, 201)
  t.not(body.id, id)
  t.equal((await admin.get(`Organization/${id}`)).status, 404)
})

t.test('runs before a transaction, which is rejected as a whole', async (t) => {
  const { id } = await admin.create({ resourceType: 'Organization', name: 'parent' })
  const fullUrl = 'urn:uuid:11111111-1111-4111-8111-111111111111'
  const bundle = (name: string) => ({
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [
      {
        fullUrl,
        request: { method: 'POST', url: 'Organization' },
        resource: { resourceType: 'Organization', name: 'linked' },
      },
      {
        request: { method: 'PUT', url: 'Organization?name=part' },
        resource: { resourceType: 'Organization', name: 'part', partOf: { reference: fullUrl } },
      },
      {
        request: { method: 'PATCH', url: `Organization/${id}` },
        resource: {
          resourceType: 'Binary',
          contentType: 'application/json-patch+json',
          data: btoa(JSON.stringify([{ op: 'replace', path: '/name', value: name }])),
        },
      },
    ],
  })
  const refused = await admin.post<Untyped>('', bundle('bad'))
  t.match(refused, { status: 400, body: { issue: [{ expression: ['Bundle.entry[2]'] }] } })
  t.equal(await total('Organization?name=linked'), 0)

  const done = await admin.post<Untyped>('', bundle('patched'))
  t.equal(done.status, 200)
  const [linked, part, patched] = done.body.entry.map(({ resource }: Untyped) => resource)
  t.match(linked.alias, [`create ${linked.id}`])
  t.match(part, {
    alias: [`create ${part.id}`],
    partOf: { reference: `Organization/${linked.id}` },
  })
  t.match(patched, { id, name: 'patched', alias: [`update ${id}`] })
})

t.test('runs for each entry of a batch separately', async (t) => {
  const entry = (name: string, more: object = {}) => ({
    request: { method: 'POST', url: 'Organization', ...more },
    resource: { resourceType: 'Organization', name },
  })
  const { body } = await admin.post<Untyped>('', {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [entry('bad'), entry('batch'), entry('missing', { ifNoneExist: 'name=missing' })],
  })
  const statuses = body.entry.map(({ response }: Untyped) => response.status.slice(0, 3))
  t.same(statuses, ['400', '201', '201'])
  for (const { resource } of body.entry.slice(1)) t.match(resource.alias, [`create ${resource.id}`])
})

t.test('runs for GraphQL mutations and for writes of other bots', async (t) => {
  const mutation = (name: string) => ({
    query: `mutation { OrganizationCreate(res: { resourceType: "Organization", name: "${name}" }) { id alias } }`,
  })
  const { body } = await admin.post<Untyped>('$graphql', mutation('by GraphQL'))
  const { id, alias } = body.data.OrganizationCreate
  t.same(alias, [`create ${id}`])
  const refused = await admin.post<Untyped>('$graphql', mutation('bad'))
  t.match(refused.body.errors, [{ message: /No such name/ }])

  const bot = await aBot(
    botica,
    handler(
      `return await medplum.createResource({ resourceType: 'Organization', name: event.input })`,
    ),
  )
  const text = { 'Content-Type': 'text/plain' }
  const run = await admin.post<Untyped>(`Bot/${bot}/$execute`, 'by a bot', text)
  t.match(run.body, { name: 'by a bot', alias: [`create ${run.body.id}`] })
  const failed = await admin.post<Untyped>(`Bot/${bot}/$execute`, 'bad', text)
  t.match(failed.body, { issue: [{ details: { text: 'No such name' } }] })
})

t.test('stores the original if the bot returns another resource or none', async (t) => {
  await asked(
    botica,
    'Device',
    `const { input } = event
     return { type: { ...input, resourceType: 'Patient', gender: 'male' },
       id: { ...input, id: crypto.randomUUID(), note: [{ text: 'changed' }] },
       number: 7, list: [input], nothing: undefined,
       outcome: { resourceType: 'OperationOutcome', issue: [] } }[input.distinctIdentifier]`,
  )
  for (const distinctIdentifier of ['type', 'id', 'number', 'list', 'nothing', 'outcome']) {
    const sent = { resourceType: 'Device', distinctIdentifier }
    const { status, body } = await admin.post<Untyped>('Device', sent)
    const { id: _id, meta: _meta, ...rest } = body
    t.same([status, rest], [201, sent], distinctIdentifier)
  }
})

t.test('requires the returned resource to be valid and allowed for the caller', async (t) => {
  await asked(
    botica,
    'Basic',
    `const { input } = event
     if (input.code.text === 'invalid') return { ...input, created: 'never' }
     return { ...input, code: { text: 'forbidden' } }`,
  )
  const basic = (text: string) => ({ resourceType: 'Basic', code: { text } })
  const invalid = await admin.post<Untyped>('Basic', basic('invalid'))
  t.match(invalid, { status: 400, body: { issue: [{ expression: ['Basic.created'] }] } })

  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    resource: [
      {
        resourceType: 'Basic',
        writeConstraint: [
          { language: 'text/fhirpath', expression: `%after.code.text != 'forbidden'` },
        ],
      },
    ],
  })
  const { client } = await botica.createMember({
    accessPolicy: { reference: `AccessPolicy/${policy.id}` },
  })
  t.match(await client.post('Basic', basic('allowed')), { status: 403 })
  t.match(await client.post('Organization', { resourceType: 'Organization' }), { status: 403 })
  t.match(await admin.post('Basic', basic('allowed')), { body: { code: { text: 'forbidden' } } })
})

t.test('runs once, and not again after the commit', async (t) => {
  const count = (text: string) => `
    await medplum.createResource({ resourceType: 'Flag', status: 'active', code: { text: '${text}' },
      subject: { reference: 'Patient/' + event.input.id } })`
  await asked(botica, 'Patient', count('asked'))
  const bot = await aBot(botica, handler(count('told')))
  await admin.create(aSubscription('Patient', `Bot/${bot}`))
  const { id } = await admin.create({ resourceType: 'Patient' })
  const flags = async (text: string) =>
    (await admin.get<Untyped>(`Flag?patient=Patient/${id}&_count=50`)).body.entry?.filter(
      ({ resource }: Untyped) => resource.code.text === text,
    ).length ?? 0
  await until(async () => (await flags('told')) === 1, SECONDS)
  t.equal(await flags('asked'), 1)
  const stale = await admin.put(
    `Patient/${id}`,
    { resourceType: 'Patient', id },
    { 'If-Match': 'W/"9"' },
  )
  t.equal(stale.status, 412)
  t.equal(await flags('asked'), 1)
})

t.test('selects writes by criteria, interactions and expressions', async (t) => {
  const refuse = (text: string) => `throw new Error('${text}')`
  const path = (expression: string) => extension('fhir-path-criteria-expression', expression)
  const only = (change: string) => extension('subscription-supported-interaction', change)
  await asked(botica, 'Task?status=draft', refuse('draft'), only('create'))
  await asked(botica, 'Task', refuse('no previous'), path(`%previous.empty() and intent = 'plan'`))
  await asked(botica, 'Task', refuse('broken'), path('(1 | 2).single() = 1'))
  const task = (status: string, intent = 'order') => ({ resourceType: 'Task', status, intent })
  const text = async (sent: Untyped) => {
    const { status, body } = await admin.post<Untyped>('Task', sent)
    return status === 201 ? 'made' : body.issue[0].details.text
  }
  t.same(
    [await text(task('draft')), await text(task('ready', 'plan')), await text(task('ready'))],
    ['draft', 'no previous', 'made'],
  )
  const { id } = await admin.create(task('ready'))
  t.match(await admin.put(`Task/${id}`, { ...task('draft'), id }), { status: 200 })
})

t.test('runs nothing and costs nothing unless the Project enables it', async (t) => {
  const other = await botica.createTenant()
  await asked(other, 'Organization', `throw new Error('never')`)
  const write = () => other.admin.create({ resourceType: 'Organization', name: 'free' })
  await write()
  t.equal(await statementsAsked(botica.services, other.admin, write), 1)
})
