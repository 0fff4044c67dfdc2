import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, deploy, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'

const botica = await openBotica(t, { worker: true })
const { admin } = botica
const JSON_TYPE = { 'Content-Type': 'application/json' }

const returning = (value: string) => handler(`return '${value}'`)
const run = async (id: string) => (await execute(admin, id)).text

async function ask(id: string, operation: string, body: unknown = {}, client = admin) {
  return await client.post<Untyped>(`Bot/${id}/$${operation}`, JSON.stringify(body), JSON_TYPE)
}

/** Calls an operation that must succeed, and returns its answer by name. */
async function call(id: string, operation: string, body: unknown = {}) {
  const answer = await ask(id, operation, body)
  if (answer.status !== 200) throw new Error(answer.text)
  return byName(answer.body.parameter)
}

function byName(parts: readonly Untyped[]): Record<string, Untyped> {
  return Object.fromEntries(
    parts.map((part) => [part.name, Object.entries(part).find(([key]) => key !== 'name')?.[1]]),
  )
}

function stage(id: string, code: string, more: Readonly<Record<string, unknown>> = {}) {
  return ask(id, 'deploy', { code, label: 'staging', ...more })
}

async function list(id: string): Promise<readonly Record<string, Untyped>[]> {
  const { body } = await admin.get<Untyped>(`Bot/${id}/$releases`)
  return body.parameter.map(({ part }: Untyped) => byName(part))
}

/** Has version 1.0.0 live and 1.1.0 as staging. */
async function aStagedBot(): Promise<string> {
  const id = await aBot(botica)
  await ask(id, 'deploy', { code: returning('one'), version: '1.0.0' })
  await stage(id, returning('two'), { version: '1.1.0' })
  return id
}

t.test('promotes staging to live, and lists the versions with their labels', async (t) => {
  const id = await aStagedBot()
  t.same(
    (await list(id)).map(({ version, label }) => [version, label]),
    [
      ['1.1.0', 'staging'],
      ['1.0.0', 'live'],
    ],
  )
  t.same(await call(id, 'promote'), { label: 'live', version: '1.1.0', previous: '1.0.0' })
  t.equal(await run(id), 'two')
  const [latest, first] = await list(id)
  t.match(latest, { version: '1.1.0', file: 'index.js', by: { reference: /^ClientApplication/ } })
  t.notMatch(first, { label: 'live' })
})

t.test('numbers versions without a name by the version of the Bot', async (t) => {
  const id = await aBot(botica, returning('one'))
  const { versionId } = (await admin.get<Untyped>(`Bot/${id}`)).body.meta
  await stage(id, returning('two'))
  const numbers = (await list(id)).map(({ version }) => Number(version))
  t.same(numbers, [Number(versionId) + 1, Number(versionId)])
})

t.test('gives a version name to one of ten simultaneous deployments', async (t) => {
  const id = await aBot(botica)
  const answers = await Promise.all(
    Array.from({ length: 10 }, (_, n) =>
      ask(id, 'deploy', { code: returning(`${n}`), version: '1.0.0', label: `try-${n}` }),
    ),
  )
  const [deployed, ...rejected] = answers.toSorted((a, b) => a.status - b.status)
  t.equal(deployed?.status, 200)
  t.same(
    rejected.map(({ body }) => body.issue[0]),
    rejected.map(() => ({
      severity: 'error',
      code: 'invalid',
      details: { text: 'The bot has a version "1.0.0" already' },
      expression: ['version'],
    })),
  )
  t.same(
    (await list(id)).map(({ version }) => version),
    ['1.0.0'],
  )
})

t.test('promotes to any label, and by version', async (t) => {
  const id = await aStagedBot()
  t.same(await call(id, 'promote', { from: '1.0.0', to: 'canary' }), {
    label: 'canary',
    version: '1.0.0',
  })
  await call(id, 'promote')
  const onCanary = await admin.post(`Bot/${id}/$execute?label=canary`, '{}', JSON_TYPE)
  t.equal(onCanary.text, 'one')
  await call(id, 'promote', { from: 'live', to: 'canary' })
  t.equal((await admin.post(`Bot/${id}/$execute?label=canary`, '{}', JSON_TYPE)).text, 'two')
})

t.test('rolls back to the version before, or to any version', async (t) => {
  const id = await aStagedBot()
  await call(id, 'promote')
  await deploy(admin, id, returning('three'))
  await admin.patch(`Bot/${id}`, [{ op: 'add', path: '/description', value: 'no code' }])
  t.match(await call(id, 'rollback'), { label: 'live', version: '1.1.0' })
  t.equal(await run(id), 'two')
  await call(id, 'rollback')
  t.equal(await run(id), 'one', 'a second one goes further back')
  t.equal((await ask(id, 'rollback')).status, 400)
  await call(id, 'rollback', { version: '1.1.0' })
  t.equal(await run(id), 'two')
})

t.test('restores the source along with the code', async (t) => {
  const id = await aBot(botica)
  const source = (value: string) => `export const handler = async (): Promise<string> => '${value}'`
  for (const value of ['one', 'two']) {
    await ask(id, 'deploy', { code: source(value), filename: `${value}.ts` })
  }
  await call(id, 'rollback')
  const { sourceCode } = (await admin.get<Untyped>(`Bot/${id}`)).body
  t.equal((await admin.get(sourceCode.url)).text, source('one'))
})

t.test('records promotions and rollbacks as audit events', async (t) => {
  const id = await aStagedBot()
  await call(id, 'promote')
  await call(id, 'rollback')
  const { body } = await admin.get<Untyped>(`AuditEvent?entity=Bot/${id}&subtype=operation`)
  const events = body.entry.map(({ resource }: Untyped) => resource.entity[0])
  t.equal(events.length, 2)
  t.match(
    events.find(({ name }: Untyped) => name === '$promote'),
    {
      detail: [
        { type: 'label', valueString: 'live' },
        { type: 'version', valueString: '1.1.0' },
        { type: 'previous', valueString: '1.0.0' },
      ],
    },
  )
})

t.test('calls that run during promotions have one of the two codes', async (t) => {
  const id = await aStagedBot()
  const answers = await Promise.all([
    ...Array.from({ length: 30 }, () => run(id)),
    call(id, 'promote').then(() => 'two'),
  ])
  t.same(
    answers.filter((answer) => answer !== 'one' && answer !== 'two'),
    [],
  )
  t.equal(await run(id), 'two')
})

t.test('sends a share of the calls to a label until the promotion', async (t) => {
  const id = await aStagedBot()
  t.match(await call(id, 'promote', { share: 50 }), { label: 'staging', share: 50 })
  const answers = new Set<string>()
  for (let n = 0; n < 200 && answers.size < 2; n++) answers.add(await run(id))
  t.same([...answers].sort(), ['one', 'two'])
  t.equal((await admin.post(`Bot/${id}/$execute?label=live`, '{}', JSON_TYPE)).text, 'one')
  t.match((await list(id))[0], { version: '1.1.0', label: 'staging', share: 50 })
  await call(id, 'promote', { share: 100 })
  for (let n = 0; n < 10; n++) t.equal(await run(id), 'two')
  await call(id, 'promote', { share: 0 })
  for (let n = 0; n < 10; n++) t.equal(await run(id), 'one')
  await call(id, 'promote', { share: 100 })
  await call(id, 'rollback')
  t.equal(await run(id), 'one', 'a rollback ends a share first')
  t.notMatch((await list(id))[0], { share: 100 })
  await call(id, 'promote', { share: 10 })
  await call(id, 'promote')
  t.notMatch((await list(id))[0], { share: 10 })
  await call(id, 'rollback')
  await call(id, 'promote', { share: 10 })
  await call(id, 'promote', { from: '1.1.0' })
  t.notMatch(
    (await list(id))[0],
    { share: 10 },
    'a promotion by version ends the share of its label',
  )
})

t.test('rejects impossible promotions and rollbacks', async (t) => {
  const id = await aStagedBot()
  const cases: readonly (readonly [string, unknown, RegExp])[] = [
    ['promote', { from: 'canary' }, /no label and no version "canary"/],
    ['promote', { from: 'live' }, /must differ/],
    ['promote', { to: 'a b' }, /must begin with a letter/],
    ['promote', { share: 101 }, /up to 100/],
    ['promote', { share: -1 }, /up to 100/],
    ['promote', { share: 'some' }, /share/],
    ['promote', { share: 10, from: '1.1.0' }, /no label "1\.1\.0"/],
    ['promote', { share: 10, to: 'canary' }, /must be live/],
    ['promote', { form: '1.1.0' }, /Unknown parameter "form"/],
    ['rollback', {}, /no version before/],
    ['rollback', { number: '1.1.0' }, /Unknown parameter "number"/],
    ['rollback', { version: '9' }, /no label and no version "9"/],
  ]
  for (const [operation, body, text] of cases) {
    const answer = await ask(id, operation, body)
    t.equal(answer.status, 400, JSON.stringify(body))
    t.match(answer.body.issue[0].details.text, text)
  }
  t.equal(await run(id), 'one')
})

t.test('runs no code that has changed since its deployment', async (t) => {
  const id = await aBot(botica, returning('one'))
  const { executableCode } = (await admin.get<Untyped>(`Bot/${id}`)).body
  await deploy(admin, id, returning('two'))
  const binary = `Binary/${/storage\/([^/]+)/.exec(executableCode.url)?.[1]}`
  await admin.put(binary, returning('evil'), { 'Content-Type': 'text/javascript' })
  const changed = await ask(id, 'rollback')
  t.equal(changed.status, 400)
  t.match(changed.body.issue[0].details.text, /has changed since its deployment/)
  await admin.del(binary)
  t.match((await ask(id, 'rollback')).body.issue[0].details.text, /is gone/)
  t.equal(await run(id), 'two')
})

t.test('compares two versions', async (t) => {
  const id = await aStagedBot()
  const compare = async (query = '') => {
    const { body } = await admin.get<Untyped>(`Bot/${id}/$diff?${query}`)
    return byName(body.parameter)
  }
  const staged = await compare()
  t.match(staged, { from: 'live (1.0.0)', to: 'staging (1.1.0)' })
  t.match(staged.diff, /^--- index\.js\tlive \(1\.0\.0\)\n\+\+\+ index\.js\tstaging \(1\.1\.0\)/)
  t.match(staged.diff, /^-exports.*'one'.*\n.*\n?\+exports.*'two'/m)
  t.same(Object.keys(await compare('from=1.0.0&to=live')), ['from', 'to'], 'no difference')
  t.equal((await admin.get(`Bot/${id}/$diff?from=9`)).status, 400)
  const stranger = (await botica.createTenant()).admin
  t.equal((await stranger.get(`Bot/${id}/$diff`)).status, 404)
})

t.test('compares the sources where both versions have one', async (t) => {
  const id = await aBot(botica)
  const source = (value: string) =>
    `interface Answer { value: string }\nexport const handler = async (): Promise<string> => '${value}'`
  await ask(id, 'deploy', { code: source('one'), filename: 'bot.ts' })
  await stage(id, source('two'), { filename: 'bot.ts' })
  const { body } = await admin.get<Untyped>(`Bot/${id}/$diff`)
  t.match(byName(body.parameter).diff, /^ interface Answer.*\n-.*Promise<string> => 'one'/m)
})

t.test('rejects a comparison of versions that differ in too many lines', async (t) => {
  const id = await aBot(botica)
  const lines = (name: string) =>
    Array.from({ length: 40_000 }, (_, n) => `// ${name} ${n}`).join('\n')
  await deploy(admin, id, `${returning('one')}\n${lines('a')}`)
  await stage(id, `${returning('one')}\n${lines('b')}`)
  const compared = await admin.get<Untyped>(`Bot/${id}/$diff`)
  t.equal(compared.status, 400)
  t.match(compared.body.issue[0], { code: 'too-costly' })
})

t.test('lets members promote if they may deploy', async (t) => {
  const id = await aStagedBot()
  const reader = await memberUnder(botica, {
    entries: [{ resourceType: 'Bot', interaction: ['read', 'search', 'history'] }],
  })
  for (const operation of ['promote', 'rollback']) {
    const body = operation === 'rollback' ? { version: '1.1.0' } : {}
    t.equal((await ask(id, operation, body, reader.client)).status, 403)
    const other = await botica.createTenant()
    t.equal((await ask(id, operation, body, other.admin)).status, 404)
  }
  t.equal((await reader.client.get(`Bot/${id}/$releases`)).status, 200)
  const stranger = (await botica.createTenant()).admin
  t.equal((await stranger.get(`Bot/${id}/$releases`)).status, 404)
  t.equal(await run(id), 'one')
})
