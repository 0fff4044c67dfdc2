import t from 'tap'
import { openBotica, type Tenant } from '../../fixtures/botica.ts'
import { aBot, eventually, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import type { Resource } from '../../fixtures/fhir.ts'

const env = { BOT_TIMEOUT_MS: '100000', EXECUTE_WAIT_MS: '110000' }
const botica = await openBotica(t, { worker: true, env })
const { admin, superAdmin, project } = botica
const shared = await botica.createTenant()
const stranger = await botica.createTenant()

async function change(tenant: Tenant, changes: object): Promise<void> {
  const { body } = await superAdmin.get<Untyped>(`Project/${tenant.project.id}`)
  const put = await superAdmin.put(`Project/${tenant.project.id}`, { ...body, ...changes })
  if (put.status !== 200) throw new Error(put.text)
  botica.services.principals.forget()
}

const text = (name: string, valueString: string) => ({ name, valueString })
const link = [{ project: { reference: `Project/${shared.project.id}` } }]
await change(shared, { secret: [text('BOTH', 'shared'), text('THEIRS', 'shared')] })
await change(botica, { link, secret: [text('BOTH', 'ours'), text('OURS', 'ours')] })

const whereami = handler(`
  const basic = await medplum.createResource({ resourceType: 'Basic', code: { text: 'x' } })
  const secrets = Object.values(event.secrets).map(({ name, valueString }) => name + ' ' + valueString)
  return [basic.meta.project, basic.meta.author.reference, medplum.getProject().id, ...secrets.sort()]`)

const aMembership = (profile: string, more: object = {}, of = project.id) =>
  ({
    resourceType: 'ProjectMembership',
    project: { reference: `Project/${of}` },
    user: { reference: profile },
    profile: { reference: profile },
    ...more,
  }) as Resource

/** Waits until the bot runs in this project; changes of memberships take seconds. */
async function answerHere(bot: string): Promise<Untyped> {
  return await eventually(async () => {
    const { body } = await execute(admin, bot)
    return Array.isArray(body) && body[0] === project.id ? body : undefined
  })
}

t.test('runs a linked bot with a membership in this project, with both secrets', async (t) => {
  const bot = await aBot(shared, whereami)
  const theirs = [shared.project.id, `Bot/${bot}`, shared.project.id]
  const own = [...theirs, 'BOTH shared', 'THEIRS shared']
  t.same((await execute(admin, bot)).body, own, 'is not a member here yet')

  const made = await admin.post<Untyped>('ProjectMembership', aMembership(`Bot/${bot}`))
  t.equal(made.status, 201)
  const here = [project.id, `Bot/${bot}`, project.id, 'BOTH ours', 'OURS ours', 'THEIRS shared']
  t.same(await answerHere(bot), here)
  t.same((await execute(shared.admin, bot)).body, own, 'is unchanged when called at home')

  const deployed = await shared.admin.post(`Bot/${bot}/$deploy`, { code: whereami })
  t.equal(deployed.status, 200, 'a foreign membership does not restrict its authors')
  const seen = await shared.admin.get<Untyped>(`ProjectMembership?profile=Bot/${bot}`)
  t.notMatch(seen.text, project.id, 'nor do they see it')

  await change(botica, { link: [] })
  const gone = await eventually(async () => {
    const answer = await execute(admin, bot)
    return answer.status === 404 ? answer : undefined
  })
  t.equal(gone.status, 404, 'returns 404 without the link')
  await change(botica, { link })
})

t.test('applies the policy of the membership in this project', async (t) => {
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    name: 'Patients only',
    resource: [{ resourceType: 'Patient', readonly: true }],
  } as Resource)
  const bot = await aBot(
    shared,
    handler(`
      const tried = async (work) => { try { return await work() && 'done' } catch (error) { return 'refused' } }
      return [
        medplum.getProject().id,
        await tried(() => medplum.searchResources('Patient')),
        await tried(() => medplum.createResource({ resourceType: 'Patient' })),
        await tried(() => medplum.createResource({ resourceType: 'Basic', code: { text: 'x' } })),
      ]`),
  )
  const access = [{ policy: { reference: `AccessPolicy/${policy.id}` } }]
  const made = await admin.post('ProjectMembership', aMembership(`Bot/${bot}`, { access }))
  t.equal(made.status, 201)
  t.same(await answerHere(bot), [project.id, 'done', 'refused', 'refused'])
})

t.test('rejects memberships of others and of bots of projects that are not linked', async (t) => {
  const ours = await aBot(botica)
  const theirs = await aBot(shared)
  const foreign = await aBot(stranger)
  const patient = await shared.admin.create({ resourceType: 'Practitioner' } as Resource)
  const [user] = [{ user: { reference: `Bot/${ours}` } }]
  const refused: readonly [string, Resource, RegExp][] = [
    ['a bot of a stranger', aMembership(`Bot/${foreign}`), /^Profile does not belong to project$/],
    ['a bot that is not there', aMembership(`Bot/${project.id}`), /^Profile does not belong/],
    ['a person', aMembership(`Practitioner/${patient.id}`), /^Profile does not belong/],
    ['a project as a bot', aMembership(`Project/${shared.project.id}`), /^Profile does not/],
    ['another user', aMembership(`Bot/${theirs}`, user), /^The user of a Bot is the Bot itself$/],
  ]
  for (const [what, membership, text] of refused) {
    for (const client of [admin, superAdmin]) {
      const { status, body } = await client.post<Untyped>('ProjectMembership', membership)
      t.equal(status, 400, what)
      t.match(body.issue[0].details.text, text, what)
    }
  }
  const back = aMembership(`Bot/${ours}`, {}, shared.project.id)
  t.equal(
    (await shared.admin.post('ProjectMembership', back)).status,
    400,
    'links have a direction',
  )
  const other = aMembership(`Bot/${theirs}`, {}, stranger.project.id)
  t.equal((await admin.post('ProjectMembership', other)).status, 400, 'rejects another project')
})

t.test('hides bots that a project keeps to itself from runs of its members', async (t) => {
  const bot = await aBot(shared, whereami)
  t.equal((await admin.post('ProjectMembership', aMembership(`Bot/${bot}`))).status, 201)
  await answerHere(bot)
  await change(shared, { exportedResourceType: ['Patient'] })
  await eventually(async () => ((await execute(admin, bot)).status === 404 ? true : undefined))
  const late = aMembership(`Bot/${await aBot(shared)}`)
  t.equal((await admin.post('ProjectMembership', late)).status, 400)
  await change(shared, { exportedResourceType: undefined })
})

t.test('runs no linked bot in a project of super admins', async (t) => {
  const rising = await botica.createTenant()
  await change(rising, { link })
  const bot = await aBot(
    shared,
    handler(`
      const tried = (work) => work().then((found) => found.id ?? found.length, () => 'refused')
      return [
        medplum.getProject().id,
        await tried(() => medplum.searchResources('Project', '_id=${stranger.project.id}')),
        await tried(() => medplum.readResource('Patient', event.input.patient)),
        await tried(() => medplum.createResource({ resourceType: 'Project', name: 'mine' })),
      ]`),
  )
  const member = await rising.admin.post(
    'ProjectMembership',
    aMembership(`Bot/${bot}`, {}, rising.project.id),
  )
  t.equal(member.status, 201, 'accepts a member while the project is an ordinary one')
  const { id } = await stranger.admin.create({ resourceType: 'Patient' } as Resource)
  const answered = async (project: string, client = rising.admin) =>
    await eventually(async () => {
      const { body } = await execute(client, bot, { patient: id })
      return Array.isArray(body) && body[0] === project ? body : undefined
    })
  const none = ['refused', 'refused', 'refused']
  t.same(await answered(rising.project.id), [rising.project.id, ...none])

  await change(rising, { superAdmin: true })
  const home = [shared.project.id, ...none]
  t.same(
    await answered(shared.project.id),
    home,
    'ends its membership there when the project is promoted',
  )
  t.same(await answered(shared.project.id, superAdmin), home, 'for any caller')
  const again = await superAdmin.post<Untyped>(
    'ProjectMembership',
    aMembership(`Bot/${await aBot(shared)}`, {}, rising.project.id),
  )
  t.equal(again.status, 400, 'rejects another membership')
  await change(rising, { superAdmin: false })
})
