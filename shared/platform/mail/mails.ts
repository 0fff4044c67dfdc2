/** The outbox of mails: a row from the transaction that wants one sent until the mail server has it. */
import { randomUUID } from 'node:crypto'
import type { Connection } from '../postgres/statement.ts'

export interface Mail {
  /** The occasion of the mail; `client`: a client of the service has written it. */
  readonly kind:
    | 'invite'
    | 'welcome'
    | 'registration'
    | 'reset'
    | 'verify-email'
    | 'email-changed'
    | 'account-changed'
    | 'subscription'
    | 'client'
  readonly to: readonly string[]
  readonly subject: string
  readonly text?: string
  readonly html?: string
  readonly cc?: readonly string[]
  readonly bcc?: readonly string[]
  readonly replyTo?: readonly string[]
  /** Undefined: `MAIL_FROM`. */
  readonly from?: string
  readonly sender?: string
  readonly attachments?: readonly MailAttachment[]
}

export interface MailAttachment {
  readonly filename?: string
  readonly contentType?: string
  /** Base64. */
  readonly content: string
}

export interface StoredMail {
  readonly id: string
  /** Id of the Project it is sent for. */
  readonly project: string
  readonly message: Mail
  /** Attempts begun, this one included. */
  readonly attempts: number
}

export interface OutboxMail extends StoredMail {
  readonly state: 'waiting' | 'kept' | 'failed'
  readonly added: Date
  readonly error: string | null
}

/** An attempt that has not ended by now has died with its process. */
const LEASE = '5 minutes'
const KEPT = '30 days'

/** Sent once the transaction of `connection` is committed. */
export async function addMail(
  connection: Connection,
  projectId: string,
  mail: Mail,
): Promise<string> {
  const id = randomUUID()
  await connection.query({
    name: 'mail-add',
    text: 'insert into mail (id, project, message) values ($1, $2, $3)',
    values: [id, projectId, JSON.stringify(mail)],
  })
  return id
}

/** The mail that has waited longest, taken for an attempt. */
export async function takeMail(connection: Connection): Promise<StoredMail | undefined> {
  const [mail] = await connection.query<StoredMail>({
    name: 'mail-take',
    text: `update mail set attempts = attempts + 1, due = clock_timestamp() + interval '${LEASE}'
      where id = (select id from mail where state = 'waiting' and due <= clock_timestamp()
        order by due limit 1 for update skip locked)
      returning id, project, message, attempts`,
    values: [],
  })
  return mail
}

export async function removeMail(connection: Connection, id: string): Promise<void> {
  await connection.query({
    name: 'mail-remove',
    text: 'delete from mail where id = $1',
    values: [id],
  })
}

/** Another attempt after `delayMs`. */
export async function repeatMail(
  connection: Connection,
  id: string,
  delayMs: number,
  error: string,
): Promise<void> {
  await connection.query({
    name: 'mail-repeat',
    text: `update mail set due = clock_timestamp() + $2::float8 * interval '1 ms', error = $3
      where id = $1`,
    values: [id, delayMs, error],
  })
}

/** No more attempts; it stays for the super admin to read, for a month. */
export async function keepMail(
  connection: Connection,
  id: string,
  state: 'kept' | 'failed',
  error?: string,
): Promise<void> {
  await connection.query({
    name: 'mail-keep',
    text: `with old as (delete from mail
        where state <> 'waiting' and added < clock_timestamp() - interval '${KEPT}')
      update mail set state = $2, error = $3 where id = $1`,
    values: [id, state, error ?? null],
  })
}

/** Newest first. */
export async function readMails(
  connection: Connection,
  count: number,
): Promise<readonly OutboxMail[]> {
  return await connection.query<OutboxMail>({
    name: 'mail-read',
    text: `select id, project, message, attempts, state, added, error from mail
      order by added desc limit $1`,
    values: [count],
  })
}
