/** Changing a password, and proving an address by the link that was mailed to it. */

import { requireGoodPassword } from '../../shared/access/password-rules.ts'
import { verifyPassword } from '../../shared/access/passwords.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { resetMail } from '../../shared/api/mail-texts.ts'
import { createSecurityRequest, redeemSecurityRequest } from '../../shared/api/security-requests.ts'
import { findUser, patchUser, projectOfUser, setPassword } from '../../shared/api/users.ts'
import { badRequest } from '../../shared/errors.ts'
import { type Resource, referenceTo } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import { addMail } from '../../shared/store/mails.ts'
import { SYSTEM_PROJECT } from '../../shared/store/projects.ts'
import type { Context } from '../context.ts'
import { audit } from './audit.ts'
import type { Fields } from './fields.ts'
import { count, type Guesses } from './guesses.ts'
import { captchaIn, requireHuman } from './recaptcha.ts'

const MAILS_AN_HOUR = 3
const system = systemPrincipal(SYSTEM_PROJECT)

/** Ends the User's other logins. Errors: 400, 429. */
export async function changePassword(
  services: Services,
  ctx: Context,
  guesses: Guesses,
  fields: Fields,
  user: Resource,
  loginId: string | undefined,
): Promise<void> {
  const oldPassword = fields.required('oldPassword', 'Old password')
  const newPassword = fields.required('newPassword', 'New password')
  fields.check()
  const id = user.id ?? ''
  const account = `change:${id}`
  await guesses.check(account, ctx.ip)
  const event = { kind: 'login', who: referenceTo(user), projectId: projectOfUser(user) } as const
  const stored = typeof user.passwordHash === 'string' ? user.passwordHash : undefined
  if (!(await verifyPassword(oldPassword, stored))) {
    await guesses.failed(account, ctx.ip)
    audit(services, ctx, { ...event, outcome: '4', what: 'Password change refused' })
    throw badRequest('Incorrect password', 'oldPassword')
  }
  await guesses.succeeded(account)
  await requireGoodPassword(newPassword, 'newPassword', services.config)
  await setPassword(services, id, newPassword, {}, loginId)
  audit(services, ctx, { ...event, outcome: '0', what: 'Password changed' })
}

/** The answer is the same, and as fast, whether there is such a User or not. */
export async function requestReset(
  services: Services,
  fields: Fields,
  project: (id: string) => Promise<Resource | undefined>,
): Promise<void> {
  const email = fields.email('email')
  const projectId = fields.optional('projectId')
  const redirectUri = fields.optional('redirectUri')
  const sendEmail = fields.flag('sendEmail') ?? true
  const captcha = captchaIn(fields)
  fields.check()
  const home = projectId === undefined ? undefined : await project(projectId)
  await requireHuman(services, captcha, home)
  const work = makeReset(services, email, projectId, redirectUri, sendEmail)
  work.catch((cause: unknown) => services.log.error({ cause }, 'A password reset was lost'))
}

async function makeReset(
  services: Services,
  email: string,
  projectId: string | undefined,
  redirectUri: string | undefined,
  sendEmail: boolean,
): Promise<void> {
  const { repository, redis, database, config } = services
  const user = await findUser(repository, email, projectId)
  if (user === undefined) return
  const mails = await count(redis, `botica:resets:${user.id}`, 3600)
  if (mails > MAILS_AN_HOUR) return
  const link = await createSecurityRequest(repository, system, 'reset', user, redirectUri)
  if (sendEmail) {
    await addMail(database, projectId ?? SYSTEM_PROJECT.id, resetMail(config, email, link))
  }
}

/** Errors: 404, 400. */
export async function usePasswordLink(
  services: Services,
  ctx: Context,
  fields: Fields,
): Promise<void> {
  const id = fields.uuid('id')
  const secret = fields.required('secret', 'Secret')
  const password = fields.required('password', 'Password')
  fields.check()
  await requireGoodPassword(password, 'password', services.config)
  const userId = await redeemSecurityRequest(services, id, secret, ['invite', 'reset'])
  await setPassword(services, userId, password, { emailVerified: true })
  audit(services, ctx, {
    kind: 'login',
    outcome: '0',
    what: 'Password set by a mailed link',
    who: `User/${userId}`,
  })
}

/** Errors: 404, 400. */
export async function verifyEmail(services: Services, fields: Fields): Promise<void> {
  const id = fields.uuid('id')
  const secret = fields.required('secret', 'Secret')
  fields.check()
  const userId = await redeemSecurityRequest(services, id, secret, ['verify-email'])
  await patchUser(services.repository, userId, { emailVerified: true })
}
