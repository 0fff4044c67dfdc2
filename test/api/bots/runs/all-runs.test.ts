/** `Bot/$runs`: the runs of all bots, by outcome and time. */
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, eventually, execute, handler, type Untyped } from '../../../fixtures/bots/bots.ts'

const botica = await openBotica(t, { worker: true })
const tenant = await botica.createTenant()
const { admin } = tenant

interface Listed {
  readonly bot: { readonly reference: string; readonly display: string }
  readonly status: string
  readonly started: string
  readonly runId: string
}

function runsIn(body: Untyped): readonly Listed[] {
  return (body.parameter ?? [])
    .filter(({ name }: Untyped) => name === 'run')
    .map(({ part }: Untyped) =>
      Object.fromEntries(
        part.map(({ name, ...value }: Untyped) => [name, Object.values(value)[0]]),
      ),
    )
}

async function list(query = '', client = admin): Promise<readonly Listed[]> {
  return runsIn((await client.get<Untyped>(`Bot/$runs${query}`)).body)
}

const good = await aBot(tenant, handler('console.log(\'"status":"thrown"\'); return 1'), {
  fields: { name: 'Good' },
})
const bad = await aBot(tenant, handler('throw new Error(\'"status":"ok"\')'), {
  fields: { name: 'Bad' },
})
for (const id of [good, bad, good]) await execute(admin, id)
// A run is recorded after its reply.
await eventually(async () => ((await list()).length === 3 ? true : undefined))

t.test('lists the runs of all bots of the project with their names, latest first', async (t) => {
  const runs = await list()
  t.same(
    runs.map(({ bot }) => bot),
    [
      { reference: `Bot/${good}`, display: 'Good' },
      { reference: `Bot/${bad}`, display: 'Bad' },
      { reference: `Bot/${good}`, display: 'Good' },
    ],
  )
  t.same(
    runs
      .map(({ started }) => started)
      .toSorted()
      .toReversed(),
    runs.map(({ started }) => started),
  )
})

t.test('selects by outcome, of all bots and of one', async (t) => {
  t.strictSame(
    (await list('?status=failed')).map(({ status }) => status),
    ['thrown'],
  )
  t.strictSame(
    (await list('?status=ok')).map(({ status }) => status),
    ['ok', 'ok'],
  )
  const { body } = await admin.get<Untyped>(`Bot/${good}/$runs?status=failed`)
  t.same(runsIn(body), [])
  t.match(await admin.get(`Bot/$runs?status=thrown`), { status: 400 })
})

t.test('selects by time', async (t) => {
  const [last, middle, first] = await list()
  const since = await list(`?since=${middle?.started}`)
  t.same(
    since.map(({ runId }) => runId),
    [last?.runId, middle?.runId],
  )
  const until = await list(`?until=${middle?.started}`)
  t.same(
    until.map(({ runId }) => runId),
    [middle?.runId, first?.runId],
  )
  t.same((await list(`?until=${first?.started.slice(0, 4)}`)).length, 3, 'a whole year')
  const { status, body } = await admin.get<Untyped>('Bot/$runs?since=yesterday')
  t.match({ status, body }, { status: 400, body: { issue: [{ expression: ['since'] }] } })
})

t.test('pages back in time within a selection', async (t) => {
  const { body } = await admin.get<Untyped>('Bot/$runs?_count=1&status=ok')
  const next = body.parameter.find(({ name }: Untyped) => name === 'next')?.valueUrl
  t.match(next, /\/Bot\/\$runs\?/)
  const { body: second } = await admin.get<Untyped>(`Bot/$runs${new URL(next).search}`)
  const found = [...runsIn(body), ...runsIn(second)]
  t.same(
    found.map(({ status }) => status),
    ['ok', 'ok'],
  )
  t.equal(new Set(found.map(({ runId }) => runId)).size, 2)
  t.notOk(second.parameter.some(({ name }: Untyped) => name === 'next'))
})

t.test('is for administrators, and lists only the runs of their project', async (t) => {
  const other = await botica.createTenant()
  t.same(await list('', other.admin), [])
  const member = await botica.createMember()
  t.equal((await member.client.get('Bot/$runs')).status, 403)
  t.equal((await botica.anonymous.get('Bot/$runs')).status, 401)
  t.match(await admin.get('Bot/$runs?runId=x'), { status: 400 })
})

t.test('omits runs of bots that the policy of an administrator hides', async (t) => {
  const { body: policy } = await admin.post<Untyped>('AccessPolicy', {
    resourceType: 'AccessPolicy',
    resource: [{ resourceType: 'Bot', criteria: 'Bot?name=Good' }],
  })
  const limited = await botica.createMember({}, tenant.project.id)
  const found = await botica.superAdmin.get<Untyped>(
    `ProjectMembership?profile=ClientApplication/${limited.id}`,
  )
  const membership = found.body.entry[0].resource
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const url = `ProjectMembership/${membership.id}`
  await botica.superAdmin.put(url, { ...membership, admin: true, accessPolicy })
  const runs = await list('', limited.client)
  t.same(new Set(runs.map(({ bot }) => bot.reference)), new Set([`Bot/${good}`]))
})
