/** Imports the reader of settings, to check its errors. */
import t from 'tap'
import { readConfig } from '../../../shared/core/config/config.ts'
import { ConfigError } from '../../../shared/core/config/reader.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { anEmail, invite } from '../../fixtures/invites.ts'
import { startSmtp } from '../../fixtures/services/smtp.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const SECONDS = 60_000
const smtp = await startSmtp(t)
const botica = await openBotica(t, {
  worker: true,
  env: {
    DATABASE_URL: await createDatabase(t),
    WORKER_QUEUES: 'bots-sync,mail',
    SMTP_URL: smtp.url,
    MAIL_FROM: 'Clinic <clinic@example.org>',
    PRODUCT_NAME: 'Clinic',
  },
})
const { admin, superAdmin, services } = botica
const { database } = services
const projectId = botica.project.id

const mailsTo = (email: string) => smtp.received.filter(({ to }) => to.includes(email))

interface Kept {
  readonly id: string
  readonly state: string
  readonly attempts: number
  readonly error: string | null
}

async function keptFor(email: string): Promise<Kept | undefined> {
  const [row] = await database.query<Kept>({
    text: `select id, state, attempts, error from mail where message->'to' ? $1`,
    values: [email],
  })
  return row
}

/** Makes the next attempt due. */
async function skipPause(): Promise<void> {
  await database.query({ text: 'update mail set due = clock_timestamp()', values: [] })
}

t.test('an invite reaches the mail server as plain text and HTML', async (t) => {
  const email = anEmail()
  await invite(admin, projectId, { email })
  await until(async () => mailsTo(email).length > 0, SECONDS)
  const [{ from, text } = { from: '', text: '' }] = mailsTo(email)
  t.equal(from, 'clinic@example.org')
  t.match(text, /^From: Clinic <clinic@example\.org>\r$/m)
  t.match(text, /^Subject: Welcome to Clinic\r$/m)
  t.match(text, /^Message-ID: <[0-9a-f-]{36}@example\.org>\r$/m)
  t.match(text, /^Content-Type: multipart\/alternative;/m)
  t.match(text, /Content-Type: text\/plain/)
  t.match(text, /Content-Type: text\/html/)
  t.match(text.replaceAll('=\r\n', ''), /setpassword\/[0-9a-f-]{36}\/[0-9a-f]{32}/)
  await until(async () => (await keptFor(email)) === undefined, SECONDS)
})

t.test('sends a mail later with the same id after a temporary rejection', async (t) => {
  const email = anEmail()
  smtp.refuse = (to) => (to.includes(email) ? 451 : undefined)
  await invite(admin, projectId, { email })
  await until(async () => (await keptFor(email))?.error != null, SECONDS)
  t.match(await keptFor(email), { state: 'waiting', error: /451/ })
  smtp.refuse = () => undefined
  await skipPause()
  await until(async () => mailsTo(email).length > 0, SECONDS)
  t.equal(mailsTo(email).length, 1)
})

t.test('a mail is tried five times', async (t) => {
  const email = anEmail()
  let attempts = 0
  smtp.refuse = (to) => {
    if (!to.includes(email)) return undefined
    attempts += 1
    return 451
  }
  await invite(admin, projectId, { email })
  await until(async () => {
    const state = (await keptFor(email))?.state
    if ((await keptFor(email))?.error != null) await skipPause()
    return state === 'failed'
  }, SECONDS)
  smtp.refuse = () => undefined
  t.match(await keptFor(email), { attempts: 5 })
  t.equal(attempts, 5)
})

t.test('does not retry permanent errors and writes an AuditEvent', async (t) => {
  const email = anEmail()
  smtp.refuse = (to) => (to.includes(email) ? 550 : undefined)
  await invite(admin, projectId, { email })
  await until(async () => (await keptFor(email))?.state === 'failed', SECONDS)
  const kept = await keptFor(email)
  t.match(kept, { attempts: 1 })
  const events = () => admin.get('AuditEvent?outcome=8')
  await until(async () => (await events()).text.includes(kept?.id ?? email), SECONDS)
  smtp.refuse = () => undefined
  t.notMatch((await events()).text, email)
  t.match((await superAdmin.get('/admin/super/mails')).text, email)
  const { body } = await superAdmin.get<{ projects: { queue: string }[] }>('/admin/super/queues')
  const mails = body.projects.filter(({ queue }) => queue === 'mail')
  t.match(mails, [{ project: projectId, waiting: 0, active: 0, failed: 2, oldestMs: null }])
  t.equal((await admin.get('/admin/super/mails')).status, 403)
})

t.test('keeps mails in the outbox without a mail server', async (t) => {
  const other = await openBotica(t, {
    worker: true,
    env: { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: 'bots-sync,mail' },
  })
  const email = anEmail()
  await invite(other.admin, other.project.id, { email })
  interface Mails {
    readonly mails: readonly { readonly state: string; readonly message: { to: string[] } }[]
  }
  const kept = async () => {
    const { body } = await other.superAdmin.get<Mails>('/admin/super/mails')
    return body.mails.filter(({ message }) => message.to.includes(email))
  }
  await until(async () => (await kept())[0]?.state === 'kept', SECONDS)
  t.match(JSON.stringify(await kept()), /setpassword/)
})

t.test('rejects an invalid address of a mail server at start', async (t) => {
  for (const SMTP_URL of ['mail.example.org', 'http://user:hidden@mail.example.org']) {
    try {
      readConfig({ ...process.env, SMTP_URL })
      t.fail('It was taken')
    } catch (error) {
      t.ok(error instanceof ConfigError)
      t.match(String(error), /SMTP_URL/)
      t.notMatch(String(error), /hidden/)
    }
  }
})
