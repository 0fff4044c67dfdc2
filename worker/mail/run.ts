/** Sends the mail outbox: five attempts with exponential backoff; permanent failures are not retried. */
import { EVENT_SYSTEM, SERVICE_NAME } from '../../shared/access/guarded/audit-events.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import type { Config } from '../../shared/core/config/config.ts'
import { backoffMs, createRenewal, startLoop, withLease } from '../../shared/jobs/loop.ts'
import {
  type LeasedMail,
  leaseMail,
  MAILS,
  mailLease,
  markMailFailed,
  removeMail,
  retryMail,
  type StoredMail,
} from '../../shared/outbound/mails.ts'
import { withoutLinkSecret } from '../../shared/projects/mail-texts.ts'
import type { Services } from '../../shared/request/services.ts'

const EVERY_MS = 500
const ATTEMPTS = 5
const FIRST_PAUSE_MS = 10_000

export function startMail(services: Services): { stop(): Promise<void> } {
  const opening = openMailer(services.config)
  const loop = startLoop({ log: services.log, name: 'Mail', everyMs: EVERY_MS }, async () =>
    takeAndSend(services, await opening),
  )
  return {
    async stop() {
      await loop.stop()
      const mailer = await opening
      mailer?.close()
    },
  }
}

async function takeAndSend(services: Services, mailer: Mailer | undefined): Promise<boolean> {
  const mail = await leaseMail(services.database)
  if (mail === undefined) return false
  const renewal = createRenewal(services, MAILS, mailLease(mail))
  const isHeld = await withLease(renewal, undefined, () =>
    mailer === undefined ? keepUnsent(services, mail) : attempt(services, mailer, mail),
  )
  if (!isHeld) services.log.warn({ mail: mail.id }, 'A mail was lost to another worker')
  return true
}

/** Without a mail server, the log names the mail and the outbox keeps it for the super admin. */
async function keepUnsent({ database, log }: Services, mail: LeasedMail): Promise<boolean> {
  const { id, message } = mail
  const { kind, to, subject, text = '' } = message
  const logged = kind === 'client' ? {} : { to, subject, text: withoutLinkSecret(text) }
  log.info({ mail: id, kind, ...logged }, 'Mail is kept: there is no SMTP_URL')
  return await markMailFailed(database, mail, 'kept')
}

async function attempt(services: Services, mailer: Mailer, mail: LeasedMail): Promise<boolean> {
  const { database, log } = services
  const { id, attempts, message } = mail
  try {
    await mailer.send(mail)
  } catch (error) {
    if (!(error instanceof MailError)) throw error
    const isLast = error.isPermanent || attempts >= ATTEMPTS
    log.warn({ mail: id, kind: message.kind, attempts, isLast, reason: error.message }, 'Mail')
    if (!isLast) {
      return await retryMail(database, mail, backoffMs(attempts, FIRST_PAUSE_MS), error.message)
    }
    const isHeld = await markMailFailed(database, mail, 'failed', error.message)
    if (isHeld) await reportFailure(services, mail)
    return isHeld
  }
  log.info({ mail: id, kind: message.kind, attempts }, 'Mail is sent')
  return await removeMail(database, mail)
}

async function reportFailure(
  { principals, repository }: Services,
  mail: StoredMail,
): Promise<void> {
  const project = await principals.project(mail.project)
  if (project === undefined) return
  await repository.create(systemPrincipal(project), {
    resourceType: 'AuditEvent',
    type: { system: EVENT_SYSTEM, code: 'mail' },
    recorded: new Date().toISOString(),
    agent: [{ who: { display: SERVICE_NAME }, requestor: false }],
    source: { observer: { display: SERVICE_NAME } },
    entity: [{ what: { identifier: { value: mail.id } }, name: mail.message.kind }],
    outcome: '8',
    outcomeDesc: 'A mail could not be sent',
  })
}

interface Mailer {
  send(mail: StoredMail): Promise<void>
  close(): void
}

/** A mail rejected by the server. Its text contains neither recipient nor content. */
export class MailError extends Error {
  /** True when a retry cannot succeed: https://datatracker.ietf.org/doc/html/rfc5321#section-4.2.1 */
  readonly isPermanent: boolean

  constructor(message: string, isPermanent: boolean, cause: unknown) {
    super(message, { cause })
    this.isPermanent = isPermanent
  }
}

const TIMEOUT_MS = 30_000

/** Returns undefined without SMTP_URL. Loads the library on demand and connects with the first mail. */
export async function openMailer({
  smtpUrl,
  mailFrom,
}: Pick<Config, 'smtpUrl' | 'mailFrom'>): Promise<Mailer | undefined> {
  if (smtpUrl === undefined) return undefined
  const { createTransport } = await import('nodemailer')
  const transport = createTransport({
    url: withTls(smtpUrl),
    pool: true,
    maxConnections: 2,
    connectionTimeout: TIMEOUT_MS,
    greetingTimeout: TIMEOUT_MS,
    socketTimeout: TIMEOUT_MS,
    // Messages may not read files or URLs.
    disableFileAccess: true,
    disableUrlAccess: true,
  })
  const domain = /@([\w.-]+)/.exec(mailFrom)?.[1] ?? 'localhost'
  return {
    async send({ id, message }) {
      const { kind: _, attachments = [], ...rest } = message
      try {
        await transport.sendMail({
          ...mutable(rest),
          from: rest.from ?? mailFrom,
          // Identifies duplicates after a crash.
          messageId: `<${id}@${domain}>`,
          attachments: attachments.map((item) => ({ ...item, encoding: 'base64' })),
        })
      } catch (error) {
        throw toMailError(error)
      }
    },
    close: () => transport.close(),
  }
}

/** Requires TLS unless the URL opts out (`?ignoreTLS=true`). */
function withTls(address: string): string {
  const url = new URL(address)
  const isConfigured = ['ignoreTLS', 'requireTLS', 'secure'].some((name) =>
    url.searchParams.has(name),
  )
  if (url.protocol === 'smtp:' && !isConfigured) url.searchParams.set('requireTLS', 'true')
  return url.href
}

/** nodemailer's types ask for mutable arrays; it does not change them. */
function mutable(message: Omit<StoredMail['message'], 'kind' | 'attachments'>) {
  const { to, cc = [], bcc = [], replyTo = [], ...rest } = message
  return { ...rest, to: [...to], cc: [...cc], bcc: [...bcc], replyTo: [...replyTo] }
}

function toMailError(error: unknown): MailError {
  const { responseCode, code } = error as { responseCode?: number; code?: string }
  // nodemailer reports 500 for a server without TLS; the mail itself was not rejected.
  const isRefused = (responseCode ?? 0) >= 500 && code !== 'ETLS'
  const isPermanent = isRefused || code === 'EENVELOPE'
  const what = [code, responseCode].filter((part) => part !== undefined).join(' ')
  return new MailError(
    `The mail server did not take it: ${what || 'no reason'}`,
    isPermanent,
    error,
  )
}
