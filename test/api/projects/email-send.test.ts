import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../fixtures/bots/bots.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEmail, mailsTo } from '../../fixtures/invites.ts'
import { openSdk } from '../../fixtures/sdk.ts'

const SEND = '/email/v1/send'
const botica = await openBotica(t, {
  worker: true,
  env: { MAIL_APPROVED_SENDERS: 'ward@example.org' },
})
const { admin, superAdmin, services } = botica

const send = (body: Record<string, unknown>, client = admin) =>
  client.post(SEND, { subject: 'Hello', text: 'World', ...body })

t.test('a project admin sends a mail', async (t) => {
  const [to, cc, bcc] = [anEmail(), anEmail(), anEmail()]
  const sent = await send({
    to: `${to}, "Ann, Lee" <${anEmail()}>`,
    cc: [{ name: 'Bob "B"', address: cc }],
    bcc: [bcc],
    replyTo: 'reply@example.org',
    html: '<p>World</p>',
    from: 'Ward <ward@example.org>',
    sender: 'evil@example.org',
  })
  t.match(sent, { status: 200, body: { resourceType: 'OperationOutcome', id: 'ok' } })
  const [mail] = await mailsTo(services, to)
  t.match(mail, {
    kind: 'client',
    subject: 'Hello',
    text: 'World',
    html: '<p>World</p>',
    cc: [`"Bob B" <${cc}>`],
    bcc: [bcc],
    replyTo: ['reply@example.org'],
    from: 'Ward <ward@example.org>',
  })
  t.equal(mail?.to.length, 2)
  t.equal(mail?.sender, undefined)
})

t.test('a sender that is not approved is replaced', async (t) => {
  const to = anEmail()
  await send({ to, from: 'president@example.org', subject: 'a\r\nBcc: x@example.org' })
  const [mail] = await mailsTo(services, to)
  t.equal(mail?.from, undefined)
  t.equal(mail?.subject, 'a Bcc: x@example.org')
})

t.test('the SDK sends', async (t) => {
  const to = anEmail()
  const medplum = await openSdk(botica)
  await medplum.sendEmail({ to, subject: 'From the SDK', text: 'x' })
  t.match(await mailsTo(services, to), [{ subject: 'From the SDK' }])
})

t.test('a bot sends when its own membership is an admin of the project', async (t) => {
  const to = anEmail()
  const mail = JSON.stringify({ to, subject: 'From a bot', text: 'x' })
  const id = await aBot(botica, handler(`return (await medplum.sendEmail(${mail})).id`))
  t.match((await execute(admin, id)).body, { issue: [{ details: { text: /Forbidden/ } }] })
  const found = await admin.get<Resource & { entry: { resource: Resource }[] }>(
    `ProjectMembership?profile=Bot/${id}`,
  )
  const membership = found.body.entry[0]?.resource
  await admin.put(`ProjectMembership/${membership?.id}`, { ...membership, admin: true })
  await until(async () => (await execute(admin, id)).status === 200, 60_000)
  t.match(await mailsTo(services, to), [{ subject: 'From a bot' }])
})

t.test('attachments are sent along', async (t) => {
  const binary = await admin.post<Resource & { id: string }>('Binary', 'from a Binary', {
    'Content-Type': 'text/plain',
  })
  const to = anEmail()
  const sent = await send({
    to,
    attachments: [
      { filename: 'a.txt', contentType: 'text/plain', cid: 'a@b', content: 'plain' },
      { content: Buffer.from('coded').toString('base64'), encoding: 'base64' },
      { content: Buffer.from('bytes') },
      { filename: 'b.txt', path: `Binary/${binary.body.id}` },
    ],
  })
  t.equal(sent.status, 200)
  const [mail] = await mailsTo(services, to)
  const contents = mail?.attachments?.map(({ content }) =>
    Buffer.from(content, 'base64').toString(),
  )
  t.same(contents, ['plain', 'coded', 'bytes', 'from a Binary'])
  t.match(mail?.attachments?.[0], { filename: 'a.txt', contentType: 'text/plain', cid: 'a@b' })
})

t.test('rejects invalid mails', async (t) => {
  const to = anEmail()
  const foreign = await botica.createTenant()
  const theirs = await foreign.admin.post<Resource & { id: string }>('Binary', 'secret', {
    'Content-Type': 'text/plain',
  })
  const bad: [Record<string, unknown>, number][] = [
    [{}, 400],
    [{ to: 'nobody' }, 400],
    [{ to: [1] }, 400],
    [{ to: `${to}\r\nBcc: x@example.org` }, 400],
    [{ to, subject: '' }, 400],
    [{ to, text: 1 }, 400],
    [{ to: Array.from({ length: 51 }, () => to) }, 400],
    [{ to, attachments: 'x' }, 400],
    [{ to, attachments: [{}] }, 400],
    [{ to, attachments: [{ path: '/etc/passwd' }] }, 400],
    [{ to, attachments: [{ path: 'file:///etc/passwd' }] }, 400],
    [{ to, attachments: [{ path: 'http://example.org/' }] }, 400],
    [{ to, attachments: [{ path: 'https://127.0.0.1:1/' }] }, 400],
    [{ to, attachments: [{ content: '%', encoding: 'base64' }] }, 400],
    [{ to, attachments: [{ path: `Binary/${theirs.body.id}` }] }, 404],
    [{ to, attachments: [{ content: 'x'.repeat(10_000_001) }] }, 413],
    [{ to, html: 'x'.repeat(10_000_001) }, 413],
  ]
  for (const [body, status] of bad)
    t.equal((await send(body)).status, status, JSON.stringify(body).slice(0, 80))
  t.equal((await admin.post(SEND, 'x', { 'Content-Type': 'text/plain' })).status, 415)
  t.same(await mailsTo(services, to), [])
})

t.test('requires an admin and the feature, and allows 1000 mails an hour', async (t) => {
  const to = anEmail()
  const { client } = await botica.createMember()
  t.equal((await send({ to }, client)).status, 403)
  t.equal((await send({ to }, botica.anonymous)).status, 401)
  const tenant = await botica.createTenant()
  const path = `Project/${tenant.project.id}`
  const project = (await superAdmin.get(path)).body
  await superAdmin.put(path, { ...project, features: ['bots'] })
  services.principals.forget()
  t.equal((await send({ to }, tenant.admin)).status, 403)
  await superAdmin.put(path, { ...project, features: ['email'] })
  services.principals.forget()
  t.equal((await send({ to }, tenant.admin)).status, 200)
  const [key = ''] = await services.redis.keys(`botica:mails:${tenant.project.id}:*`)
  await services.redis.set(key, 999)
  t.equal((await send({ to }, tenant.admin)).status, 200)
  const refused = await send({ to }, tenant.admin)
  t.equal(refused.status, 429)
  t.ok(Number(refused.headers.get('retry-after')) > 0)
})

t.test('rejects fields that the mail would not have', async (t) => {
  const to = anEmail()
  const cases: readonly (readonly [body: Record<string, unknown>, place: string])[] = [
    [{ to, headers: { 'X-Priority': '1' } }, 'headers'],
    [{ to, attachments: [{ content: 'a', cid: '<a>' }] }, 'attachments[0].cid'],
    [{ to, attachments: [{ content: 'a', path: 'Binary/1' }] }, 'attachments[0]'],
  ]
  for (const [body, place] of cases) {
    t.match(await send(body), { status: 400, body: { issue: [{ expression: [place] }] } }, place)
  }
  t.same(await mailsTo(services, to), [])
})

t.test('rejects further addresses inside one', async (t) => {
  const [to, spy] = [anEmail(), 'spy@attacker.example']
  const hidden = [
    `${spy}; <${to}>`,
    `${spy}; ${to}`,
    `Ward: ${spy}, ${to};`,
    `Ward: ${spy};<${to}>`,
    `<${spy}> <${to}>`,
    `<${spy}; ${to}>`,
    `"Ward\\" <${spy}>; "<${to}>`,
    `Ward\\, <${to}>`,
    { address: `${spy}; <${to}>` },
    { address: `Ward <${spy}>` },
    { address: `${to}\x01` },
  ]
  for (const value of hidden) {
    for (const field of ['to', 'cc', 'bcc', 'replyTo', 'from', 'sender']) {
      const sent = await send({ to, [field]: value })
      t.match(
        sent,
        { status: 400, body: { issue: [{ expression: [field] }] } },
        `${field} ${value}`,
      )
    }
  }
  t.same(await mailsTo(services, to), [])
})

t.test('keeps names apart from addresses', async (t) => {
  const to = anEmail()
  const names = [
    'spy@attacker.example',
    'Ann (spy@attacker.example)',
    '"Ann; Lee, <x@y>"',
    'Ann "B" Lee',
  ]
  const sent = await send({
    to,
    cc: names.map((name) => `${name} <${to}>`),
    replyTo: `Ann <${to}>`,
  })
  t.equal(sent.status, 200, sent.text)
  const [mail] = await mailsTo(services, to)
  t.same(mail?.cc, [
    `"spy@attacker.example" <${to}>`,
    `"Ann (spy@attacker.example)" <${to}>`,
    `"Ann; Lee, <x@y>" <${to}>`,
    `"Ann B Lee" <${to}>`,
  ])
  t.same(mail?.replyTo, [`Ann <${to}>`])
})
