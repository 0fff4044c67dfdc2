/** Mail outbox: rows written in the sender's transaction and kept until delivery. */
import { randomUUID } from 'node:crypto'
import { timings } from '../core/config/waits.ts'
import {
  deleteLeased,
  type Lease,
  type LeaseTable,
  leaseNext,
  releaseLeased,
} from '../postgres/leases.ts'
import type { Connection } from '../postgres/statement.ts'

export interface Mail {
  /** The occasion of the mail; `client`: written by an API client. */
  readonly kind:
    | 'invite'
    | 'welcome'
    | 'registration'
    | 'reset'
    | 'verify-email'
    | 'email-changed'
    | 'account-changed'
    | 'sign-in-code'
    | 'subscription'
    | 'dead-letters'
    | 'client'
  readonly to: readonly string[]
  /** For a mail about an account of one Project: its id. */
  readonly accountProject?: string | undefined
  readonly subject: string
  readonly text?: string
  readonly html?: string
  readonly cc?: readonly string[]
  readonly bcc?: readonly string[]
  readonly replyTo?: readonly string[]
  readonly from?: string
  readonly sender?: string
  readonly attachments?: readonly MailAttachment[]
}

/** Mails about an account: their links give access to it, and their news must reach its owner. */
const ABOUT_ACCOUNTS: ReadonlySet<Mail['kind']> = new Set([
  'invite',
  'registration',
  'reset',
  'verify-email',
  'email-changed',
  'account-changed',
  'sign-in-code',
])

/** False for accounts of other Projects and of the whole service, whose mails the Project's own server must not see. */
export function mayUseOwnServer({ project, message }: StoredMail): boolean {
  return !ABOUT_ACCOUNTS.has(message.kind) || message.accountProject === project
}

export interface MailAttachment {
  readonly filename?: string
  readonly contentType?: string
  /** Id in the HTML: `<img src="cid:logo">`. */
  readonly cid?: string
  readonly content: string
}

export interface StoredMail {
  readonly id: string
  readonly project: string
  readonly message: Mail
  /** Attempts begun, including the current one. */
  readonly attempts: number
}

export interface LeasedMail extends StoredMail {
  readonly token: number
}

interface OutboxMail extends StoredMail {
  readonly state: 'waiting' | 'kept' | 'failed'
  readonly added: Date
  readonly error: string | null
}

/** `due` is the end of a lease, or the time of the next attempt. */
export const MAILS: LeaseTable = {
  name: 'mail',
  key: { id: 'uuid' },
  token: 'takes',
  expiresAt: 'due',
  leaseMs: timings.leaseMs,
}

const KEPT = '30 days'

/** Sent after the transaction of `connection` commits. */
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

export function mailLease({ id, token }: Pick<LeasedMail, 'id' | 'token'>): Lease {
  return { key: [id], token }
}

/** Leases the mail whose attempt is most overdue, of a Project that is not among `except`. */
export async function leaseMail(
  connection: Connection,
  except: readonly string[],
): Promise<LeasedMail | undefined> {
  return await leaseNext<StoredMail>(connection, MAILS, {
    name: 'mail-lease',
    where: `x.state = 'waiting' and x.project <> all($1)`,
    values: [except],
    orderBy: 'x.due',
    set: 'attempts = x.attempts + 1',
    returning: 'x.id, x.project, x.message, x.attempts',
  })
}

/** Removes a sent mail. False when its lease was lost, as below. */
export async function removeMail(connection: Connection, mail: LeasedMail): Promise<boolean> {
  return await deleteLeased(connection, MAILS, mailLease(mail))
}

/** Schedules another attempt after `delayMs`. */
export async function retryMail(
  connection: Connection,
  mail: LeasedMail,
  delayMs: number,
  error: string,
): Promise<boolean> {
  return await releaseLeased(connection, MAILS, mailLease(mail), {
    name: 'mail-repeat',
    set: `due = clock_timestamp() + $3::float8 * interval '1 ms', error = $4`,
    values: [delayMs, error],
  })
}

/** Ends the attempts; super admins can read the mail for a month. */
export async function markMailFailed(
  connection: Connection,
  mail: LeasedMail,
  state: 'kept' | 'failed',
  error?: string,
): Promise<boolean> {
  await connection.query({
    name: 'mail-clear',
    text: `delete from mail
      where state <> 'waiting' and added < clock_timestamp() - interval '${KEPT}'`,
  })
  return await releaseLeased(connection, MAILS, mailLease(mail), {
    name: 'mail-keep',
    set: 'state = $3, error = $4',
    values: [state, error ?? null],
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

/** Returns the state of the newest invitation to the address; undefined when it was sent or never written. */
export async function readMailState(
  connection: Connection,
  projectId: string,
  email: string,
): Promise<OutboxMail['state'] | undefined> {
  const [newest] = await connection.query<Pick<OutboxMail, 'state'>>({
    name: 'mail-state',
    text: `select state from mail
      where project = $1 and message->'to' ? $2 and message->>'kind' in ('invite', 'welcome')
      order by added desc limit 1`,
    values: [projectId, email],
  })
  return newest?.state
}
