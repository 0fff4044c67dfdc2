/** Password changes, and links by mail that prove an address. */

import { provenApplicant } from '../../../shared/access/credentials/hashing.ts'
import { requireGoodPassword } from '../../../shared/access/credentials/passwords.ts'
import { SYSTEM_PROJECT, system } from '../../../shared/access/project-context.ts'
import { badRequest } from '../../../shared/core/errors.ts'
import { type Resource, referenceTo } from '../../../shared/fhir/resource.ts'
import { anonymousGuess, forgiveGuesses } from '../../../shared/identity/guesses.ts'
import { addMail } from '../../../shared/outbound/mails.ts'
import { resetMail } from '../../../shared/projects/mail-texts.ts'
import { provenEmailChanges } from '../../../shared/projects/ownership.ts'
import {
  allowLinkMail,
  createSecurityRequest,
  redeemSecurityRequest,
  requireSameAddress,
} from '../../../shared/projects/security-requests.ts'
import { isOwnPassword, notifyOwner } from '../../../shared/projects/signed-in-user.ts'
import {
  findUser,
  patchUser,
  projectOfUser,
  readUser,
  setPassword,
} from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import { readRegistry } from '../../../shared/store/lookups.ts'
import type { Context } from '../../http/context.ts'
import { rateLimitAddress } from '../../middleware/limits.ts'
import { rememberDevice, renewDevice } from '../browser.ts'
import { audit } from '../sign-in-audit.ts'
import type { SignInFields } from './fields.ts'
import { readCaptcha, verifyCaptcha } from './fields.ts'

/** Changes the password and ends the User's other logins. Errors: 400, 429. */
export async function changePassword(
  services: Services,
  ctx: Context,
  fields: SignInFields,
  { user, loginId }: { readonly user: Resource; readonly loginId: string | undefined },
): Promise<void> {
  const oldPassword = fields.required('oldPassword', 'Old password')
  const newPassword = fields.required('newPassword', 'New password')
  fields.check()
  const id = user.id ?? ''
  const event = { kind: 'login', who: referenceTo(user), projectId: projectOfUser(user) } as const
  if (!(await isOwnPassword(services, user, oldPassword))) {
    audit(services, ctx, { ...event, outcome: '4', what: 'Password change refused' })
    throw badRequest('Incorrect password', 'oldPassword')
  }
  await requireGoodPassword(newPassword, 'newPassword', services.config)
  await services.hashing.run(provenApplicant(id), () =>
    setPassword(services, id, newPassword, { exceptLogin: loginId }),
  )
  await renewDevice(services, ctx, user)
  await notifyOwner(services, user, 'the password was changed')
  audit(services, ctx, { ...event, outcome: '0', what: 'Password changed' })
}

/** Reply and duration are the same for known and unknown Users. */
export async function requestReset(services: Services, fields: SignInFields): Promise<void> {
  const email = fields.email('email')
  const projectId = fields.optional('projectId')
  const redirectUri = fields.optional('redirectUri')
  const sendEmail = fields.flag('sendEmail') ?? true
  const captcha = readCaptcha(fields)
  fields.check()
  const { repository } = services
  const home = await readRegistry(repository, 'Project', projectId ?? '')
  await verifyCaptcha(services, captcha, home)
  const work = makeReset(services, { email, projectId, redirectUri, sendEmail })
  work.catch((cause: unknown) => services.log.error({ cause }, 'A password reset was lost'))
}

interface Reset {
  readonly email: string
  readonly projectId: string | undefined
  readonly redirectUri: string | undefined
  readonly sendEmail: boolean
}

async function makeReset(
  services: Services,
  { email, projectId, redirectUri, sendEmail }: Reset,
): Promise<void> {
  const { repository, redis, database, config } = services
  const user = await findUser(repository, email, projectId)
  if (user === undefined) return
  if (!(await allowLinkMail(redis, user))) return
  const link = await createSecurityRequest(repository, system, { type: 'reset', user, redirectUri })
  if (sendEmail) {
    await addMail(database, projectId ?? SYSTEM_PROJECT.id, resetMail(config, email, link))
  }
}

/** Errors: 404, 400, 429. */
export async function usePasswordLink(
  services: Services,
  ctx: Context,
  fields: SignInFields,
): Promise<void> {
  const id = fields.uuid('id')
  const secret = fields.required('secret', 'Secret')
  const password = fields.required('password', 'Password')
  fields.check()
  await requireGoodPassword(password, 'password', services.config)
  const address = rateLimitAddress(ctx.ip)
  // One queue slot for both: without room to hash the password, the link remains usable.
  const userId = await services.hashing.run(
    { account: id, address, trust: 'stranger' },
    async () => {
      const redeemed = await redeemSecurityRequest(services, id, secret, ['invite', 'reset'])
      await setPassword(services, redeemed.userId, password, {
        change: (user) => {
          requireSameAddress(user, redeemed)
          return { ...provenEmailChanges(user), emailVerified: true }
        },
      })
      return redeemed.userId
    },
  )
  await welcomeBack(services, ctx, userId)
  audit(services, ctx, {
    kind: 'login',
    outcome: '0',
    what: 'Password set by a mailed link',
    who: `User/${userId}`,
  })
}

/**
 * Removes pauses that strangers caused at this account: the link proves access to the mailbox. An unknown device
 * still needs the second factor, which no mail proves.
 */
async function welcomeBack(services: Services, ctx: Context, userId: string): Promise<void> {
  const user = await readUser(services.repository, userId)
  if (user === undefined) return
  await forgiveGuesses(services.redis, anonymousGuess(String(user.email)), userId)
  if (user.mfaEnrolled !== true) rememberDevice(services, ctx, user)
}

/** Errors: 404, 400. */
export async function verifyEmail(services: Services, fields: SignInFields): Promise<void> {
  const id = fields.uuid('id')
  const secret = fields.required('secret', 'Secret')
  fields.check()
  const redeemed = await redeemSecurityRequest(services, id, secret, ['verify-email'])
  // No proof of ownership: the mailbox and the password of a User may belong to different people.
  await patchUser(services.repository, redeemed.userId, (user) => {
    requireSameAddress(user, redeemed)
    return { emailVerified: true }
  })
}
