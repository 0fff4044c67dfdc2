/** Hands mails to the mail server that SMTP_URL names. */
import { createTransport } from 'nodemailer'
import type { Config } from '../../config/config.ts'
import type { StoredMail } from './mails.ts'

export interface Mailer {
  /** Errors: MailError. */
  send(mail: StoredMail): Promise<void>
  close(): void
}

/** A mail that the server did not take. Its text names neither recipient nor content. */
export class MailError extends Error {
  /** The server will never take it: https://datatracker.ietf.org/doc/html/rfc5321#section-4.2.1 */
  readonly isPermanent: boolean

  constructor(message: string, isPermanent: boolean, cause: unknown) {
    super(message, { cause })
    this.isPermanent = isPermanent
  }
}

const TIMEOUT_MS = 30_000

/** Undefined without SMTP_URL. Connects when the first mail is sent. */
export function openMailer({
  smtpUrl,
  mailFrom,
}: Pick<Config, 'smtpUrl' | 'mailFrom'>): Mailer | undefined {
  if (smtpUrl === undefined) return undefined
  const transport = createTransport({
    url: withTls(smtpUrl),
    pool: true,
    maxConnections: 2,
    connectionTimeout: TIMEOUT_MS,
    greetingTimeout: TIMEOUT_MS,
    socketTimeout: TIMEOUT_MS,
    // Whatever a message says, nothing but what it carries is sent.
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
          // A mail that is sent twice, after a crash, is known by this.
          messageId: `<${id}@${domain}>`,
          attachments: attachments.map((item) => ({ ...item, encoding: 'base64' })),
        })
      } catch (error) {
        throw failureOf(error)
      }
    },
    close: () => transport.close(),
  }
}

/** TLS is a must unless the address says otherwise (`?ignoreTLS=true`). */
function withTls(address: string): string {
  const url = new URL(address)
  const isConfigured = ['ignoreTLS', 'requireTLS', 'secure'].some((name) =>
    url.searchParams.has(name),
  )
  if (url.protocol === 'smtp:' && !isConfigured) url.searchParams.set('requireTLS', 'true')
  return url.href
}

/** nodemailer's types ask for arrays it may change; it does not change them. */
function mutable(message: Omit<StoredMail['message'], 'kind' | 'attachments'>) {
  const { to, cc = [], bcc = [], replyTo = [], ...rest } = message
  return { ...rest, to: [...to], cc: [...cc], bcc: [...bcc], replyTo: [...replyTo] }
}

function failureOf(error: unknown): MailError {
  const { responseCode, code } = error as { responseCode?: number; code?: string }
  // nodemailer makes up a 500 for a server that has no TLS; the mail itself was not refused.
  const isRefused = (responseCode ?? 0) >= 500 && code !== 'ETLS'
  const isPermanent = isRefused || code === 'EENVELOPE'
  const what = [code, responseCode].filter((part) => part !== undefined).join(' ')
  return new MailError(
    `The mail server did not take it: ${what || 'no reason'}`,
    isPermanent,
    error,
  )
}
