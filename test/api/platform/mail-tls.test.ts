/** Imports the mailer, to connect it to servers with wrong certificates. */
import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { getCACertificates, setDefaultCACertificates } from 'node:tls'
import t from 'tap'
import type { StoredMail } from '../../../shared/outbound/mails.ts'
import { MailError, openMailer } from '../../../worker/mail/outbox.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { anEmail, invite } from '../../fixtures/invites.ts'
import { aCertificate } from '../../fixtures/services/certificate.ts'
import { type Smtp, startSmtp } from '../../fixtures/services/smtp.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const SECONDS = 60_000
const certificate = aCertificate()
const [secure, upgrading, plain, foreign] = await Promise.all([
  startSmtp(t, { ...certificate, secure: true }),
  startSmtp(t, certificate),
  startSmtp(t),
  startSmtp(t, aCertificate()),
])
setDefaultCACertificates([...getCACertificates(), certificate.cert])

function smtpAddress({ port }: Smtp, scheme: 'smtp' | 'smtps', query = ''): string {
  return `${scheme}://clinic:pass%3Aword@127.0.0.1:${port}/${query}`
}

async function send(smtp: Smtp, smtpUrl: string) {
  const email = anEmail()
  const message = { kind: 'client', to: [email], subject: 'Hello', text: 'Good day' } as const
  const mail: StoredMail = { id: randomUUID(), project: randomUUID(), attempts: 1, message }
  const mailer = await openMailer({ smtpUrl, mailFrom: 'Clinic <clinic@example.org>' })
  try {
    await mailer?.send(mail)
  } finally {
    mailer?.close()
  }
  return smtp.received.find(({ to }) => to.includes(email))
}

async function refusal(smtp: Smtp, smtpUrl: string): Promise<MailError> {
  try {
    await send(smtp, smtpUrl)
  } catch (error) {
    if (error instanceof MailError) return error
    throw error
  }
  throw new Error('The mail was taken')
}

t.test('sends mail over implicit TLS or STARTTLS', async (t) => {
  const wanted = { from: 'clinic@example.org', isSecure: true, user: 'clinic' }
  t.match(await send(secure, smtpAddress(secure, 'smtps')), wanted)
  t.match(await send(upgrading, smtpAddress(upgrading, 'smtp')), wanted)
})

t.test('sends neither mail nor password without TLS, unless the URL allows it', async (t) => {
  for (const scheme of ['smtp', 'smtps'] as const) {
    t.match(await refusal(plain, smtpAddress(plain, scheme)), { isPermanent: false }, scheme)
  }
  t.same([plain.received, plain.signedIn], [[], []])
  const told = await send(plain, smtpAddress(plain, 'smtp', '?ignoreTLS=true'))
  t.match(told, { isSecure: false, user: 'clinic' })
})

t.test('sends nothing to an untrusted certificate, unless the URL allows it', async (t) => {
  t.match(await refusal(foreign, smtpAddress(foreign, 'smtp')), { isPermanent: false })
  t.same([foreign.received, foreign.signedIn], [[], []])
  const trusting = smtpAddress(foreign, 'smtp', '?tls.rejectUnauthorized=false')
  t.match(await send(foreign, trusting), { isSecure: true, user: 'clinic' })
})

t.test(
  'sends an invite over TLS from the worker, with the trust store of the machine',
  async (t) => {
    const folder = t.testdir({ 'ca.pem': certificate.cert })
    const botica = await openBotica(t, {
      worker: 'process',
      env: {
        DATABASE_URL: await createDatabase(t),
        WORKER_QUEUES: 'bots-sync,mail',
        SMTP_URL: smtpAddress(secure, 'smtps'),
        NODE_EXTRA_CA_CERTS: join(folder, 'ca.pem'),
      },
    })
    const email = anEmail()
    await invite(botica.admin, botica.project.id, { email })
    const findMail = () => secure.received.find(({ to }) => to.includes(email))
    await until(async () => findMail() !== undefined, SECONDS)
    t.match(findMail(), { isSecure: true, user: 'clinic', text: /^Subject: Welcome to Botica\r$/m })
  },
)
