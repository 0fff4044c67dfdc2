/** Bots started by Subscriptions: input, identity and the depth limit of chains. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { aSubscription, extension } from '../../fixtures/http/receiver.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const PATIENCE_MS = 90_000
const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: 'bots-sync,change' },
})
const { admin } = botica

const subscribe = (criteria: string, bot: string, more: object = {}) =>
  admin.create(aSubscription(criteria, `Bot/${bot}`, more))

const found = async (query: string): Promise<Untyped[]> => {
  const { body } = await admin.get<Untyped>(query)
  return (body.entry ?? []).map(({ resource }: Untyped) => resource)
}

/** Bot code that stores its input as a Basic. */
const KEEP = handler(`
  const { input, headers, requester, contentType, attempt, runId } = event
  await medplum.createResource({ resourceType: 'Basic', code: { text: 'kept' },
    extension: [{ url: 'urn:event', valueString: JSON.stringify(
      { input, headers, requester, contentType, attempt, runId }) }] })`)

const kept = async (): Promise<Untyped[]> =>
  (await found('Basic?code:text=kept&_sort=_lastUpdated')).map(({ extension: [item] }) =>
    JSON.parse(item.valueString),
  )

t.test('passes the resource, its author and the headers of the event to a bot', async (t) => {
  const bot = await aBot(botica, KEEP)
  const subscription = await subscribe('Patient?gender=other', bot)
  const author = `ClientApplication/${botica.adminCredentials.id}`
  const { id } = await admin.create({ resourceType: 'Patient', gender: 'other' })
  await until(async () => (await kept()).length === 1, PATIENCE_MS)
  const [event] = await kept()
  t.match(event, {
    input: { resourceType: 'Patient', id, gender: 'other' },
    headers: {
      'content-type': 'application/fhir+json',
      'x-medplum-subscription': subscription.id,
      'x-medplum-interaction': 'create',
      'x-attempt': '1',
      'x-event-id': event.runId,
    },
    requester: { reference: author },
    contentType: 'application/fhir+json',
    attempt: 1,
  })

  await admin.del(`Patient/${id}`)
  await until(async () => (await kept()).length === 2, PATIENCE_MS)
  const [, deletion] = await kept()
  t.match(deletion, {
    input: { deletedResource: { resourceType: 'Patient', id } },
    headers: { 'x-medplum-deleted-resource': `Patient/${id}` },
  })
})

t.test('retries a failing bot with the same id', async (t) => {
  const bot = await aBot(
    botica,
    handler(`
      const { attempt, runId } = event
      await medplum.createResource({ resourceType: 'Basic', code: { text: 'tried' },
        extension: [{ url: 'urn:run', valueString: runId }, { url: 'urn:n', valueInteger: attempt }] })
      if (attempt === 1) throw new Error('not yet')`),
  )
  await subscribe('Device', bot)
  await admin.create({ resourceType: 'Device' })
  const tries = () => found('Basic?code:text=tried&_sort=_lastUpdated')
  await until(async () => (await tries()).length === 2, PATIENCE_MS)
  const [first, second] = await tries()
  t.equal(first.extension[0].valueString, second.extension[0].valueString)
  t.same([first.extension[1].valueInteger, second.extension[1].valueInteger], [1, 2])
})

t.test('stops bots that trigger each other at depth ten', async (t) => {
  const bot = await aBot(
    botica,
    handler(`
      const { id, resourceType, code, extension: [{ valueInteger }] } = event.input
      await medplum.createResource({ resourceType, code,
        extension: [{ url: 'urn:depth', valueInteger: valueInteger + 1 }] })`),
  )
  const { id } = await subscribe('Substance', bot, {
    extension: [extension('subscription-supported-interaction', 'create')],
  })
  await admin.create({
    resourceType: 'Substance',
    code: { text: 'chain' },
    extension: [{ url: 'urn:depth', valueInteger: 0 }],
  })
  const dropped = () => found(`AuditEvent?entity=Subscription/${id}&outcome=8`)
  await until(async () => (await dropped()).length === 1, PATIENCE_MS)
  const [audit] = await dropped()
  t.match(audit.outcomeDesc, /more than 10 deep/)
  const depths = (await found('Substance?_count=100')).map(
    ({ extension: [item] }) => item.valueInteger,
  )
  t.equal(Math.max(...depths), 11)
})

t.test('stops bots that trigger invites at depth ten', async (t) => {
  const bot = await aBot(
    botica,
    handler(`
      const next = Number(event.input.name[0].family) + 1
      await medplum.post('admin/projects/' + event.secrets.PROJECT.valueString + '/invite', {
        resourceType: 'Patient', firstName: 'Chain', lastName: String(next), sendEmail: false,
        email: event.runId + '@example.com' })`),
  )
  const { body: project } = await botica.superAdmin.get<Untyped>(`Project/${botica.project.id}`)
  const secret = [{ name: 'PROJECT', valueString: project.id }]
  await botica.superAdmin.put(`Project/${project.id}`, { ...project, secret })
  const [membership] = await found(`ProjectMembership?profile=Bot/${bot}`)
  await admin.put(`ProjectMembership/${membership.id}`, { ...membership, admin: true })
  const { id } = await subscribe('Patient?given=Chain', bot, {
    extension: [extension('subscription-supported-interaction', 'create')],
  })
  await admin.create({ resourceType: 'Patient', name: [{ given: ['Chain'], family: '0' }] })
  const dropped = () => found(`AuditEvent?entity=Subscription/${id}&outcome=8`)
  await until(async () => (await dropped()).length === 1, PATIENCE_MS)
  const chain = (await found('Patient?given=Chain&_count=100')).map(({ name: [{ family }] }) =>
    Number(family),
  )
  t.equal(Math.max(...chain), 11)
})

t.test('limits the input of a bot to its policy', async (t) => {
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    resource: [
      { resourceType: 'Basic' },
      {
        resourceType: 'Organization',
        criteria: 'Organization?active=true',
        hiddenFields: ['name'],
      },
    ],
  })
  const bot = await aBot(botica, KEEP)
  const [membership] = await found(`ProjectMembership?profile=Bot/${bot}`)
  const changed = await botica.superAdmin.put(`ProjectMembership/${membership.id}`, {
    ...membership,
    accessPolicy: { reference: `AccessPolicy/${policy.id}` },
  })
  t.equal(changed.status, 200)
  await subscribe('Organization', bot)
  const before = (await kept()).length
  await until(async () => {
    await admin.create({ resourceType: 'Organization', name: 'unseen', active: false })
    await admin.create({ resourceType: 'Organization', name: 'hidden', active: true })
    return (await kept()).length > before
  }, PATIENCE_MS)
  const event = (await kept()).at(-1)
  t.match(event.input, { resourceType: 'Organization', active: true, name: undefined })
})

t.test('names the resource and Subscription in the record of a run', async (t) => {
  const bot = await aBot(botica, handler('return 1'))
  const subscription = await subscribe('Medication', bot)
  const { id } = await admin.create({ resourceType: 'Medication', code: { text: 'x' } })
  const audits = () => found(`AuditEvent?source=Bot/${bot}`)
  await until(async () => (await audits()).length === 1, PATIENCE_MS)
  const [{ entity }] = await audits()
  t.same(
    entity.map(({ what }: Untyped) => what.reference),
    [`Bot/${bot}`, `Medication/${id}`, `Subscription/${subscription.id}`],
  )
  const runs = async () => (await admin.get<Untyped>(`Bot/${bot}/$runs`)).body.parameter ?? []
  await until(async () => (await runs()).length === 1, PATIENCE_MS)
  const [{ part }] = await runs()
  t.match(
    part.find(({ name }: Untyped) => name === 'mode'),
    { valueCode: 'event' },
  )
})
