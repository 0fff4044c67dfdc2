/** Mail servers of Projects: settings, delivery, outbound rules, and no influence on other Projects. */
import { createServer } from 'node:http'
import { join } from 'node:path'
import t from 'tap'
import { openBotica, type Tenant, until } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { anEmail, invite } from '../../fixtures/invites.ts'
import { aCertificate } from '../../fixtures/services/certificate.ts'
import { startSmtp } from '../../fixtures/services/smtp.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const SECONDS = 60_000
const json = { 'Content-Type': 'application/json' }
const certificate = aCertificate()
const [common, own] = await Promise.all([startSmtp(t), startSmtp(t, certificate)])
const folder = t.testdir({ 'ca.pem': certificate.cert })
const env = {
  WORKER_QUEUES: 'bots-sync,mail',
  SMTP_URL: common.url,
  MAIL_FROM: 'Common <common@example.org>',
  NODE_EXTRA_CA_CERTS: join(folder, 'ca.pem'),
}
const botica = await openBotica(t, {
  worker: 'process',
  env: { ...env, DATABASE_URL: await createDatabase(t) },
})
const { services } = botica

interface Place {
  readonly smtpHost?: string
  readonly smtpPort?: number
  readonly smtpUser?: string
  readonly smtpFrom?: string
}

const OWN: Place = {
  smtpHost: '127.0.0.1',
  smtpPort: own.port,
  smtpUser: 'clinic',
  smtpFrom: 'Clinic <clinic@example.net>',
}
const listSettings = (place: Place) =>
  Object.entries(place).map(([name, value]) =>
    typeof value === 'number' ? { name, valueInteger: value } : { name, valueString: value },
  )
const set = ({ admin, project }: Tenant, place: Place) =>
  admin.post<Untyped>(`/admin/projects/${project.id}/settings`, listSettings(place), json)
const setPassword = ({ admin, project }: Tenant, valueString: string) =>
  admin.post(
    `/admin/projects/${project.id}/secrets`,
    [
      { name: 'smtpPassword', valueString },
      { name: 'OTHER', valueString: 'another secret' },
    ],
    json,
  )
const findMail = (smtp: typeof own, email: string) =>
  smtp.received.find(({ to }) => to.includes(email))

async function readState(email: string, { database } = services) {
  const [row] = await database.query<{ state: string; error: string | null }>({
    text: `select state, error from mail where message->'to' ? $1`,
    values: [email],
  })
  return row
}

t.test('sends the mails of a project through its own server, by TLS', async (t) => {
  const clinic = await botica.createTenant()
  const set200 = await set(clinic, OWN)
  t.equal(set200.status, 200, set200.text)
  t.equal((await setPassword(clinic, 'a long password')).status, 200)
  const [theirs, ours] = [anEmail(), anEmail()]
  await invite(clinic.admin, clinic.project.id, { email: theirs, scope: 'project' })
  await invite(botica.admin, botica.project.id, { email: ours })
  await until(async () => findMail(own, theirs) !== undefined, SECONDS)
  t.match(findMail(own, theirs), {
    from: 'clinic@example.net',
    isSecure: true,
    user: 'clinic',
    text: /^From: Clinic <clinic@example\.net>\r$/m,
  })
  t.equal(findMail(common, theirs), undefined)
  await until(async () => findMail(common, ours) !== undefined, SECONDS)
  t.match(findMail(common, ours), { from: 'common@example.org' })
  t.equal(findMail(own, ours), undefined)

  t.equal((await set(clinic, {})).status, 200)
  const later = anEmail()
  await invite(clinic.admin, clinic.project.id, { email: later })
  await until(async () => findMail(common, later) !== undefined, SECONDS)
})

t.test('mails about accounts of the whole service stay with its server', async (t) => {
  const clinic = await botica.createTenant()
  await set(clinic, OWN)
  await setPassword(clinic, 'a long password')
  const { admin, project } = clinic
  const [shared, theirs] = [anEmail(), anEmail()]
  const member = await invite(admin, project.id, { email: shared })
  const other = await invite(admin, project.id, { email: theirs, scope: 'project' })
  for (const { body } of [member, other]) {
    const path = `/admin/projects/${project.id}/members/${body.id}/resetpassword`
    t.equal((await admin.post(path, {}, json)).status, 200)
  }
  const mailsAt = (smtp: typeof own, email: string) =>
    smtp.received.filter(
      ({ to, text }) => to.includes(email) && text.replaceAll('=\r\n', '').includes('setpassword'),
    )
  await until(async () => mailsAt(common, shared).length === 2, SECONDS)
  await until(async () => mailsAt(own, theirs).length === 2, SECONDS)
  t.equal(findMail(own, shared), undefined, 'the project does not get a link to a shared account')
  t.equal(findMail(common, theirs), undefined)
})

t.test('bots send through the server, and do not get its password', async (t) => {
  const clinic = await botica.createTenant()
  await set(clinic, OWN)
  await setPassword(clinic, 'a long password')
  const secrets = await aBot(clinic, handler('return event.secrets'))
  const { body } = await execute(clinic.admin, secrets)
  t.same(Object.keys(body), ['OTHER'])
  const to = anEmail()
  const sent = await clinic.admin.post('/email/v1/send', { to, subject: 'Hello', text: 'World' })
  t.equal(sent.status, 200, sent.text)
  await until(async () => findMail(own, to) !== undefined, SECONDS)
})

t.test('servers that do not answer hold up no other project', async (t) => {
  // Waits for a request, while the mailer waits for a greeting.
  const silent = await listen(t, createServer())
  const waiting: string[] = []
  for (let i = 0; i < 10; i++) {
    const stuck = await botica.createTenant()
    t.equal((await set(stuck, { ...OWN, smtpPort: silent })).status, 200)
    await setPassword(stuck, 'a long password')
    for (let j = 0; j < 4; j++) {
      const email = anEmail()
      await invite(stuck.admin, stuck.project.id, { email, scope: 'project' })
      waiting.push(email)
    }
  }
  const email = anEmail()
  await invite(botica.admin, botica.project.id, { email })
  await until(async () => findMail(common, email) !== undefined, SECONDS)
  t.match(await readState(waiting.at(-1) ?? ''), { state: 'waiting', error: null })
})

t.test('a server without TLS gets neither mail nor password', async (t) => {
  const plain = await startSmtp(t)
  const clinic = await botica.createTenant()
  await set(clinic, { ...OWN, smtpPort: plain.port })
  await setPassword(clinic, 'a long password')
  const email = anEmail()
  await invite(clinic.admin, clinic.project.id, { email, scope: 'project' })
  await until(async () => (await readState(email))?.error != null, SECONDS)
  t.match(await readState(email), { state: 'waiting', error: /ETLS/ })
  t.same([plain.received, plain.signedIn], [[], []])
})

t.test('rejects settings that name no server, with the setting', async (t) => {
  const clinic = await botica.createTenant()
  const bad: readonly (readonly [Place | readonly object[], string, RegExp])[] = [
    [{ ...OWN, smtpHost: 'mail.example.org:587' }, 'Project.setting[0]', /smtpHost must be/],
    [{ ...OWN, smtpHost: 'a b' }, 'Project.setting[0]', /smtpHost must be/],
    [{ ...OWN, smtpPort: 70_000 }, 'Project.setting[1]', /smtpPort must be a port/],
    [{ smtpHost: 'mail.example.org' }, 'Project.setting[0]', /needs smtpFrom/],
    [{ ...OWN, smtpFrom: 'nobody' }, 'Project.setting[3]', /smtpFrom must be/],
    [
      { ...OWN, smtpFrom: 'a@b.example\r\nBcc: c@d.example' },
      'Project.setting[3]',
      /smtpFrom must/,
    ],
    [{ smtpPort: 587 }, 'Project.setting[0]', /smtpPort needs smtpHost/],
    [
      [{ name: 'smtpHost', valueBoolean: true }],
      'Project.setting[0]',
      /smtpHost must have a valueString/,
    ],
  ]
  for (const [place, expression, text] of bad) {
    const items = Array.isArray(place) ? place : listSettings(place as Place)
    const path = `/admin/projects/${clinic.project.id}/settings`
    const refused = await clinic.admin.post<Untyped>(path, items, json)
    t.equal(refused.status, 400, text.source)
    t.match(refused.body.issue[0], { expression: [expression], details: { text } })
  }
})

t.test('connects only where the outbound rules permit', async (t) => {
  const strict = await openBotica(t, {
    worker: 'process',
    env: { ...env, DATABASE_URL: await createDatabase(t), HOOK_TARGETS: 'public' },
  })
  const refused = await set(strict, OWN)
  t.equal(refused.status, 400)
  t.match(refused.body.issue[0], { expression: ['Project.setting[0]'] })
  const mapped = await set(strict, { ...OWN, smtpHost: '[::ffff:127.0.0.1]', smtpPort: 587 })
  t.equal(mapped.status, 400)
  const relay = await set(strict, { ...OWN, smtpHost: 'mail.example.org', smtpPort: 25 })
  t.match(relay, {
    status: 400,
    body: { issue: [{ details: { text: 'Port 25 is not allowed' } }] },
  })
  t.equal((await setPassword(strict, 'a long password')).status, 200)
  // A name is resolved when a mail is sent.
  t.equal((await set(strict, { ...OWN, smtpHost: 'localhost', smtpPort: 587 })).status, 200)
  const email = anEmail()
  await invite(strict.admin, strict.project.id, { email, scope: 'project' })
  await until(async () => (await readState(email, strict.services))?.state === 'failed', SECONDS)
  const { error } = (await readState(email, strict.services)) ?? {}
  t.equal(error, 'localhost is not a public address')
})

t.test('narrower outbound rules prevent no other change of a project', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  const wide = await openBotica(t, { env: { ...env, DATABASE_URL } })
  t.equal((await set(wide, OWN)).status, 200)
  const strict = await openBotica(t, { env: { ...env, DATABASE_URL, HOOK_TARGETS: 'public' } })
  const { project } = wide
  const at = { project, admin: strict.superAdmin, adminCredentials: wide.adminCredentials }
  const saved = await setPassword(at, 'a long password')
  t.equal(saved.status, 200, saved.text)
  const renamed = await set(at, { ...OWN, smtpUser: 'other' })
  t.equal(renamed.status, 200, renamed.text)
  t.equal((await set(at, { ...OWN, smtpPort: 465 })).status, 400, 'a new address is checked')
})
