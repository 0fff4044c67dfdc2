/**
 * Sends the mail outbox: five attempts with exponential backoff; permanent failures are not retried. Mails of several
 * Projects are sent at the same time, of each Project one, and slow ones leave places to others, so that a slow server
 * of a Project delays no other.
 */
import { isIP } from 'node:net'
import { EVENT_SYSTEM, SERVICE_NAME } from '../../shared/access/guarded/elements.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import type { Config } from '../../shared/core/config/config.ts'
import { type Outbound, plainHost } from '../../shared/core/config/outbound.ts'
import { isUnavailable } from '../../shared/core/errors.ts'
import { backoffMs, createRenewal, startLoop, withLease } from '../../shared/jobs/loop.ts'
import { FetchRefused, resolveAllowedAddress } from '../../shared/outbound/fetch-outside.ts'
import {
  type LeasedMail,
  leaseMail,
  MAILS,
  mailLease,
  markMailFailed,
  mayUseOwnServer,
  removeMail,
  retryMail,
  type StoredMail,
} from '../../shared/outbound/mails.ts'
import {
  type MailServer,
  mailRules,
  mailServerUrl,
  readMailServer,
  SMTP_PASSWORD,
} from '../../shared/outbound/project-mail.ts'
import { withoutCodes } from '../../shared/projects/mail-texts.ts'
import type { Services } from '../../shared/request/services.ts'
import { readRegistry } from '../../shared/store/lookups.ts'

const EVERY_MS = 500
const ATTEMPTS = 5
const FIRST_PAUSE_MS = 10_000
/** Projects whose mails are sent at the same time. */
const PROJECTS_AT_ONCE = 8
/** Places among them for slow Projects. */
const SLOW_AT_ONCE = 4
const SLOW_MS = 3000
/** A Project stays slow for this time: its server may be quick with every other mail. */
const STAYS_SLOW_MS = 10 * 60_000

export function startMail(services: Services): { stop(): Promise<void> } {
  const opening = openMailer(services.config)
  const { log } = services
  /** By Project. */
  const sending = new Map<string, Promise<void>>()
  const slowUntil = new Map<string, number>()
  const isSlow = (project: string) => (slowUntil.get(project) ?? 0) > Date.now()
  const loop = startLoop({ log, name: 'Mail', everyMs: EVERY_MS }, async () => {
    const isFull = [...sending.keys()].filter(isSlow).length >= SLOW_AT_ONCE
    const slow = isFull ? [...slowUntil.keys()].filter(isSlow) : []
    const mail = await leaseMail(services.database, [...sending.keys(), ...slow])
    if (mail === undefined) return false
    const { project } = mail
    const startedAt = performance.now()
    const work = send(services, await opening, mail).finally(() => {
      if (performance.now() - startedAt > SLOW_MS)
        slowUntil.set(project, Date.now() + STAYS_SLOW_MS)
      else if (!isSlow(project)) slowUntil.delete(project)
      sending.delete(project)
      loop.wake()
    })
    sending.set(project, work)
    if (sending.size >= PROJECTS_AT_ONCE) await Promise.race(sending.values())
    return true
  })
  return {
    async stop() {
      await loop.stop()
      await Promise.all(sending.values())
      const mailer = await opening
      mailer?.close()
    },
  }
}

/** After a failure of the database, the lease ends and the mail is sent again. */
async function send(
  services: Services,
  common: Mailer | undefined,
  mail: LeasedMail,
): Promise<void> {
  const { log } = services
  const renewal = createRenewal(services, MAILS, mailLease(mail))
  try {
    const isHeld = await withLease(renewal, undefined, async () => {
      const own = await findOwnMailer(services, mail)
      const mailer = own ?? common
      return mailer === undefined ? keepUnsent(services, mail) : attempt(services, mailer, mail)
    })
    if (!isHeld) log.warn({ mail: mail.id }, 'A mail was lost to another worker')
  } catch (cause) {
    log[isUnavailable(cause) ? 'debug' : 'warn']({ cause, mail: mail.id }, 'Mail failed')
  }
}

/** Returns undefined without a mail server of the Project, and for mails that it must not see. */
async function findOwnMailer(
  { repository, config }: Services,
  mail: StoredMail,
): Promise<Mailer | undefined> {
  if (!mayUseOwnServer(mail)) return undefined
  const project = await readRegistry(repository, 'Project', mail.project)
  const server = project && readMailServer(project)
  return server && openProjectMailer(server, mailRules(config.hookTargets))
}

/** Without a mail server, the log names the mail and the outbox keeps it for the super admin. */
async function keepUnsent({ database, log }: Services, mail: LeasedMail): Promise<boolean> {
  const { id, message } = mail
  const { kind, to, subject, text = '' } = message
  const logged = kind === 'client' ? {} : { to, subject, text: withoutCodes(text) }
  log.info({ mail: id, kind, ...logged }, 'Mail is kept: there is no mail server')
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
/** For the server of a Project, which may answer slowly on purpose: until it greets, and for a whole mail. */
const PROJECT_GREETING_MS = 5000
const PROJECT_TIMEOUT_MS = 30_000
/** https://datatracker.ietf.org/doc/html/rfc8314#section-3.3 */
const IMPLICIT_TLS_PORT = 465
const LIMITS = {
  connectionTimeout: TIMEOUT_MS,
  greetingTimeout: TIMEOUT_MS,
  socketTimeout: TIMEOUT_MS,
  // Messages may not read files or URLs.
  disableFileAccess: true,
  disableUrlAccess: true,
}

/** Returns undefined without SMTP_URL. Loads the library on demand and connects with the first mail. */
export async function openMailer({
  smtpUrl,
  mailFrom,
}: Pick<Config, 'smtpUrl' | 'mailFrom'>): Promise<Mailer | undefined> {
  if (smtpUrl === undefined) return undefined
  const { createTransport } = await import('nodemailer')
  const transport = createTransport({
    ...LIMITS,
    url: withTls(smtpUrl),
    pool: true,
    maxConnections: 2,
  })
  return {
    send: (mail) => sendBy(transport, toMessage(mail, mailFrom)),
    close: () => transport.close(),
  }
}

/** For each mail one connection, by TLS, to the address that was checked. */
function openProjectMailer(server: MailServer, rules: Outbound): Mailer {
  const { port, user, password, from } = server
  const url = mailServerUrl(server)
  const name = plainHost(url.hostname)
  return {
    async send(mail) {
      if (user !== undefined && password === undefined) {
        throw new MailError(`The project has no secret ${SMTP_PASSWORD}`, true, undefined)
      }
      const { createTransport } = await import('nodemailer')
      const host = await resolveAllowedAddress(url, rules).catch((error: Error) => {
        throw new MailError(error.message, error instanceof FetchRefused, error)
      })
      const transport = createTransport({
        ...LIMITS,
        connectionTimeout: PROJECT_GREETING_MS,
        greetingTimeout: PROJECT_GREETING_MS,
        host,
        port,
        secure: port === IMPLICIT_TLS_PORT,
        requireTLS: true,
        ...(isIP(name) === 0 ? { tls: { servername: name } } : {}),
        ...(user === undefined ? {} : { auth: { user, pass: password } }),
      })
      const signal = AbortSignal.timeout(PROJECT_TIMEOUT_MS)
      await sendBy(transport, { ...toMessage(mail, from), signal })
    },
    close: () => undefined,
  }
}

/** Errors: MailError. */
async function sendBy<Message>(
  transport: { sendMail(message: Message): Promise<unknown> },
  message: Message,
): Promise<void> {
  try {
    await transport.sendMail(message)
  } catch (error) {
    throw toMailError(error)
  }
}

function toMessage({ id, message }: StoredMail, sender: string) {
  const { kind: _, accountProject: __, attachments = [], ...rest } = message
  const domain = /@([\w.-]+)/.exec(sender)?.[1] ?? 'localhost'
  return {
    ...mutable(rest),
    from: rest.from ?? sender,
    // Identifies duplicates after a crash.
    messageId: `<${id}@${domain}>`,
    attachments: attachments.map((item) => ({ ...item, encoding: 'base64' })),
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
function mutable(message: Omit<StoredMail['message'], 'kind' | 'accountProject' | 'attachments'>) {
  const { to, cc = [], bcc = [], replyTo = [], ...rest } = message
  return { ...rest, to: [...to], cc: [...cc], bcc: [...bcc], replyTo: [...replyTo] }
}

function toMailError(error: unknown): MailError {
  const { responseCode, code } = error as { responseCode?: number; code?: string }
  // nodemailer reports 500 for a server without TLS; the mail itself was not rejected.
  const isRefused = (responseCode ?? 0) >= 500 && code !== 'ETLS'
  const isPermanent = isRefused || code === 'EENVELOPE'
  const reason = [code, responseCode].filter((part) => part !== undefined).join(' ')
  return new MailError(`The mail server rejected it: ${reason || 'no reason'}`, isPermanent, error)
}
