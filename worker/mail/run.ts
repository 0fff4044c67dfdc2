/** Sends what the outbox holds: five attempts, the pause doubling; what is refused for good is not repeated. */
import { systemPrincipal } from '../../shared/access/principal.ts'
import { MailError, type Mailer, openMailer } from '../../shared/platform/mail/mail.ts'
import {
  keepMail,
  removeMail,
  repeatMail,
  type StoredMail,
  takeMail,
} from '../../shared/platform/mail/mails.ts'
import { withoutLinkSecret } from '../../shared/projects/mail-texts.ts'
import type { Services } from '../../shared/services.ts'
import { backoffMs, startLoop } from '../loop.ts'

const EVERY_MS = 500
const ATTEMPTS = 5
const FIRST_PAUSE_MS = 10_000

/** Sends one mail at a time until `stop`. */
export function startMail(services: Services): { stop(): Promise<void> } {
  const mailer = openMailer(services.config)
  const loop = startLoop({ log: services.log, name: 'Mail', everyMs: EVERY_MS }, () =>
    takeAndSend(services, mailer),
  )
  return {
    async stop() {
      await loop.stop()
      mailer?.close()
    },
  }
}

/** False when none was waiting. */
async function takeAndSend(services: Services, mailer: Mailer | undefined): Promise<boolean> {
  const mail = await takeMail(services.database)
  if (mail === undefined) return false
  if (mailer === undefined) await keepUnsent(services, mail)
  else await attempt(services, mailer, mail)
  return true
}

/** Without a mail server the log names the mail, and the outbox holds it for the super admin. */
async function keepUnsent({ database, log }: Services, { id, message }: StoredMail): Promise<void> {
  const { kind, to, subject, text = '' } = message
  const logged = kind === 'client' ? {} : { to, subject, text: withoutLinkSecret(text) }
  log.info({ mail: id, kind, ...logged }, 'Mail is kept: there is no SMTP_URL')
  await keepMail(database, id, 'kept')
}

async function attempt(services: Services, mailer: Mailer, mail: StoredMail): Promise<void> {
  const { database, log } = services
  const { id, attempts, message } = mail
  try {
    await mailer.send(mail)
  } catch (error) {
    if (!(error instanceof MailError)) throw error
    const isLast = error.isPermanent || attempts >= ATTEMPTS
    log.warn({ mail: id, kind: message.kind, attempts, isLast, reason: error.message }, 'Mail')
    if (!isLast) {
      return await repeatMail(database, id, backoffMs(attempts, FIRST_PAUSE_MS), error.message)
    }
    await keepMail(database, id, 'failed', error.message)
    return await reportFailure(services, mail)
  }
  await removeMail(database, id)
  log.info({ mail: id, kind: message.kind, attempts }, 'Mail is sent')
}

async function reportFailure(
  { principals, repository }: Services,
  mail: StoredMail,
): Promise<void> {
  const project = await principals.project(mail.project)
  if (project === undefined) return
  await repository.create(systemPrincipal(project), {
    resourceType: 'AuditEvent',
    type: { system: 'https://medplum.com/CodeSystem/audit-event', code: 'mail' },
    recorded: new Date().toISOString(),
    agent: [{ who: { display: 'Botica' }, requestor: false }],
    source: { observer: { display: 'Botica' } },
    entity: [{ what: { identifier: { value: mail.id } }, name: mail.message.kind }],
    outcome: '8',
    outcomeDesc: 'A mail could not be sent',
  })
}
