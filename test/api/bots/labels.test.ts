import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import {
  aBot,
  deploy,
  eventually,
  execute,
  finished,
  handler,
  type Untyped,
} from '../../fixtures/bots/bots.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: {
    DATABASE_URL: await createDatabase(t),
    WORKER_QUEUES: 'bots-sync,bots-async,change,schedules,upkeep',
  },
})
const { admin } = botica
const JSON_TYPE = { 'Content-Type': 'application/json' }

const returning = (value: string) => handler(`return '${value}'`)

function deployAs(id: string, code: string, more: Readonly<Record<string, unknown>>) {
  return admin.post<Untyped>(`Bot/${id}/$deploy`, { code, filename: 'index.js', ...more })
}

async function runAs(id: string, label: string, client = admin) {
  return await client.post<Untyped>(`Bot/${id}/$execute?label=${label}`, '{}', JSON_TYPE)
}

/** A label with the code that the Bot runs. */
function aLabel(name: string, code: unknown, ...more: readonly object[]) {
  return {
    url: 'urn:botica:bot-label',
    extension: [
      { url: 'name', valueString: name },
      { url: 'code', valueAttachment: code },
      ...more,
    ],
  }
}

t.test('runs the code of a label on request, and the live code otherwise', async (t) => {
  const id = await aBot(botica, returning('one'))
  t.equal((await deployAs(id, returning('two'), { label: 'staging' })).status, 200)
  t.equal((await execute(admin, id)).text, 'one')
  t.equal((await runAs(id, 'staging')).text, 'two')
  t.equal((await runAs(id, 'live')).text, 'one')
  await deploy(admin, id, returning('three'))
  t.equal((await execute(admin, id)).text, 'three', 'a deploy without a label is live')
  t.equal((await runAs(id, 'staging')).text, 'two')
})

t.test('returns 400 for a deploy with inputs that are unknown or without a value', async (t) => {
  const id = await aBot(botica, returning('one'))
  const code = returning('two')
  const label = { name: 'label', valueString: 'staging' }
  const given = (...more: object[]) => ({
    resourceType: 'Parameters',
    parameter: [{ name: 'code', valueString: code }, ...more],
  })
  const cases: readonly (readonly [string, object, string])[] = [
    ['', { code, lable: 'staging' }, 'lable'],
    ['?lable=staging', { code }, 'lable'],
    ['?label=', { code }, 'label'],
    ['?label=staging', { code, label: 'next' }, 'label'],
    ['', given({ ...label, name: 'lable' }), 'Parameters.parameter[1]'],
    ['', given({ name: 'label' }), 'Parameters.parameter[1]'],
    ['', given({ name: 'label', valueBoolean: true }), 'Parameters.parameter[1]'],
    ['', given(label, label), 'Parameters.parameter[2]'],
    ['', { ...given(), paramter: [label] }, 'Parameters.paramter'],
  ]
  for (const [query, body, place] of cases) {
    const answer = await admin.post<Untyped>(`Bot/${id}/$deploy${query}`, body)
    t.equal(answer.status, 400, JSON.stringify(body))
    t.same(answer.body.issue?.[0]?.expression, [place])
  }
  t.equal((await execute(admin, id)).text, 'one')
})

t.test('reads the label of a deploy from the query and from any text of Parameters', async (t) => {
  const id = await aBot(botica, returning('one'))
  const path = `Bot/${id}/$deploy`
  const inQuery = await admin.post(`${path}?label=staging&_pretty=true`, { code: returning('two') })
  t.equal(inQuery.status, 200)
  const parameter = [
    { name: 'code', valueString: returning('three') },
    { name: 'label', valueCode: 'next' },
  ]
  t.equal((await admin.post(path, { resourceType: 'Parameters', parameter })).status, 200)
  t.equal((await execute(admin, id)).text, 'one')
  t.equal((await runAs(id, 'staging')).text, 'two')
  t.equal((await runAs(id, 'next')).text, 'three')
})

t.test('keeps the source of labelled TypeScript with the label', async (t) => {
  const id = await aBot(botica, returning('one'))
  const code = 'export const handler = async (): Promise<string> => "typed"'
  await deployAs(id, code, { label: 'staging', filename: 'typed.ts', version: '1.5.0' })
  t.equal((await runAs(id, 'staging')).text, 'typed')
  const { extension, sourceCode } = (await admin.get<Untyped>(`Bot/${id}`)).body
  t.not(sourceCode?.title, 'typed.ts', 'the source of the live code stays')
  const [name, shown, source] = extension[0].extension
  t.equal(name.valueString, 'staging')
  t.match(shown.valueAttachment, {
    title: 'typed.ts',
    extension: [{ url: 'urn:botica:bot-version', valueString: '1.5.0' }],
  })
  t.equal((await admin.get(source.valueAttachment.url)).text, code)
})

t.test('shows the label of a run', async (t) => {
  const id = await aBot(botica, returning('one'))
  await deployAs(id, returning('two'), { label: 'staging' })
  await runAs(id, 'staging')
  await execute(admin, id)
  const labels = await eventually(async () => {
    const { body } = await admin.get<Untyped>(`Bot/${id}/$runs`)
    const runs: readonly Untyped[] = body.parameter ?? []
    if (runs.length < 2) return undefined
    return runs.map(({ part }) => part.find(({ name }: Untyped) => name === 'label')?.valueString)
  })
  t.same(labels, [undefined, 'staging'])
})

t.test('an accepted run keeps its code when the bot is deployed', async (t) => {
  const code = `
    if (event.attempt === 1) {
      await medplum.createResource({ resourceType: 'Basic', code: { coding: [{ code: 'begun' }] } })
      while ((await medplum.searchResources('Basic', 'code=go-on')).length === 0);
      throw new Error('again')
    }
    return 'old ' + event.attempt`
  const retry = { url: 'urn:botica:bot-retry', valueInteger: 2 }
  const id = await aBot(botica, returning('live'), { fields: { extension: [retry] } })
  await deployAs(id, handler(code), { label: 'staging' })
  const path = `Bot/${id}/$execute?label=staging`
  const accepted = await admin.post(path, '{}', { ...JSON_TYPE, Prefer: 'respond-async' })
  await eventually(async () => {
    const { body } = await admin.get<Untyped>('Basic?code=begun')
    return body.entry?.length === 1 ? true : undefined
  })
  await deployAs(id, returning('new'), { label: 'staging' })
  await admin.create({ resourceType: 'Basic', code: { coding: [{ code: 'go-on' }] } })
  const job = await finished(admin, accepted.headers.get('content-location'))
  t.match(JSON.stringify(job.output), 'old 2')
})

t.test('rejects labels and versions that cannot be', async (t) => {
  const id = await aBot(botica, returning('one'))
  const cases: readonly (readonly [Readonly<Record<string, unknown>>, RegExp])[] = [
    [{ label: '' }, /"label" is empty/],
    [{ label: 'a b' }, /label must begin with a letter/],
    [{ label: 7 }, /"label" must be a string/],
    [{ version: '7' }, /must not be a whole number/],
    [{ version: 'a b' }, /A version must have/],
    [{ version: true }, /"version" must be a string/],
    [{ code: '', label: 'staging' }, /"code" is empty/],
    [{ code: undefined, label: 'staging' }, /"code" is missing/],
  ]
  for (const [more, text] of cases) {
    const answer = await deployAs(id, returning('two'), more)
    t.equal(answer.status, 400, JSON.stringify(more))
    t.match(answer.body.issue[0].details.text, text)
  }
  await deployAs(id, returning('two'), { version: 'v2' })
  const again = await deployAs(id, returning('three'), { version: 'v2' })
  t.match(again.body.issue[0].details.text, 'The bot has a version "v2" already')
  const missing = await runAs(id, 'canary')
  t.equal(missing.status, 400)
  t.match(missing.body.issue[0], {
    expression: ['label'],
    details: { text: 'The bot has no label "canary"' },
  })
  t.equal((await execute(admin, id)).text, 'two')
})

t.test('rejects labels of a Bot that are not well-formed', async (t) => {
  const id = await aBot(botica, returning('one'))
  const bot = (await admin.get<Untyped>(`Bot/${id}`)).body
  const code = bot.executableCode
  const share = (value: unknown) => ({ url: 'share', valueInteger: value })
  const cases: readonly (readonly [readonly object[], RegExp])[] = [
    [[aLabel('live', code)], /"live" is there already/],
    [[aLabel('a', code), aLabel('a', code)], /"a" is there already/],
    [[aLabel('a/b', code)], /label must begin with a letter/],
    [[aLabel('a', { url: 'https://example.com/code.js' })], /an Attachment of a Binary/],
    [[{ url: 'urn:botica:bot-label', extension: [{ url: 'name', valueString: 'a' }] }], /Binary/],
    [[{ url: 'urn:botica:bot-label', valueString: 'a' }], /must have a name/],
    [[aLabel('a', code, { url: 'shares', valueInteger: 1 })], /one name, code, source and share/],
    [[aLabel('a', code, share(10), share(20))], /one name, code, source and share/],
    [[aLabel('a', code, { url: 'source', valueString: 'x' })], /source .* must be an Attachment/],
    [[aLabel('a', code, share(101))], /whole number up to 100/],
    [[aLabel('a', code, share(60)), aLabel('b', code, share(50))], /exceed 100/],
  ]
  for (const [extension, text] of cases) {
    const answer = await admin.put<Untyped>(`Bot/${id}`, { ...bot, extension })
    t.equal(answer.status, 400, JSON.stringify(extension))
    t.match(answer.body.issue[0].details.text, text)
    t.match(answer.body.issue[0].expression, [/^Bot\.extension\[\d\]$/])
  }
})

t.test('a member with fewer rights than a bot may not write the code of its labels', async (t) => {
  const id = await aBot(botica, returning('one'))
  await deployAs(id, returning('two'), { label: 'staging' })
  const entries = [{ resourceType: 'Bot' }, { resourceType: 'Binary' }]
  const { client } = await memberUnder(botica, { entries })
  const { executableCode } = (await admin.get<Untyped>(`Bot/${id}`)).body
  const patched = await client.patch<Untyped>(`Bot/${id}`, [
    { op: 'add', path: '/extension', value: [aLabel('staging', executableCode)] },
  ])
  const body = { code: returning('evil'), label: 'staging' }
  const deployed = await client.post<Untyped>(`Bot/${id}/$deploy`, body)
  const { extension } = (await admin.get<Untyped>(`Bot/${id}`)).body
  const { url } = extension[0].extension[1].valueAttachment
  const [, binary] = /storage\/([^/]+)/.exec(url) ?? []
  const js = { 'Content-Type': 'text/javascript' }
  const overwritten = await client.put<Untyped>(`Binary/${binary}`, returning('evil'), js)
  for (const answer of [patched, deployed, overwritten]) {
    t.equal(answer.status, 403)
    t.equal(
      answer.body.issue[0].details.text,
      `The membership of Bot/${id} has more rights than yours`,
    )
  }
  t.equal((await runAs(id, 'staging')).text, 'two')
})
