/** Changing a password, and proving an address by the link that was mailed to it. */
import { provenApplicant } from '../../../shared/access/credentials/hashing.ts'
import { requireGoodPassword } from '../../../shared/access/credentials/passwords.ts'
import { systemPrincipal } from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { badRequest } from '../../../shared/core/errors.ts'
import { type Resource, referenceTo } from '../../../shared/fhir/resource.ts'
import { anonymousGuess, forgiveGuesses } from '../../../shared/identity/guesses.ts'
import { addMail } from '../../../shared/outbound/mails.ts'
import { resetMail } from '../../../shared/projects/mail-texts.ts'
import { provenEmailChanges } from '../../../shared/projects/ownership.ts'
import {
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
import { countEvent } from '../../../shared/redis/limiter.ts'
import type { Redis } from '../../../shared/redis/redis.ts'
import type { Services } from '../../../shared/request/services.ts'
import type { Context } from '../../http/context.ts'
import { rateLimitAddress } from '../../middleware/limits.ts'
import { rememberDevice, renewDevice } from '../browser.ts'
import { audit } from '../login-store.ts'
import type { Fields } from './fields.ts'
import { readCaptcha, verifyCaptcha } from './fields.ts'

const MAILS_AN_HOUR = 3
const system = systemPrincipal(SYSTEM_PROJECT)

/** Ends the User's other logins. Errors: 400, 429. */
export async function changePassword(
  services: Services,
  ctx: Context,
  fields: Fields,
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
  const captcha = readCaptcha(fields)
  fields.check()
  const home = projectId === undefined ? undefined : await project(projectId)
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
  if (!(await allowPasswordMail(redis, user))) return
  const link = await createSecurityRequest(repository, system, { type: 'reset', user, redirectUri })
  if (sendEmail) {
    await addMail(database, projectId ?? SYSTEM_PROJECT.id, resetMail(config, email, link))
  }
}

/** False for a User who has got enough links within the hour; counts one more. */
export async function allowPasswordMail(redis: Redis, user: Resource): Promise<boolean> {
  return (await countEvent(redis, `botica:resets:${user.id}`, 3600)) <= MAILS_AN_HOUR
}

/** Errors: 404, 400, 429. */
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
  const address = rateLimitAddress(ctx.ip)
  // One turn for both: a link is not used up where there is no room to hash the password.
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
 * Strangers may have paused the sign-ins at this account; the person with the mailbox is not one of them. Only a
 * second factor, which no mail proves, is still required from an unknown device.
 */
async function welcomeBack(services: Services, ctx: Context, userId: string): Promise<void> {
  const user = await readUser(services.repository, userId)
  if (user === undefined) return
  await forgiveGuesses(services.redis, anonymousGuess(String(user.email)), userId)
  if (user.mfaEnrolled !== true) rememberDevice(services, ctx, user)
}

/** Errors: 404, 400. */
export async function verifyEmail(services: Services, fields: Fields): Promise<void> {
  const id = fields.uuid('id')
  const secret = fields.required('secret', 'Secret')
  fields.check()
  const redeemed = await redeemSecurityRequest(services, id, secret, ['verify-email'])
  // Not a proof of whose the User is: who reads the mail need not be who has set the password.
  await patchUser(services.repository, redeemed.userId, (user) => {
    requireSameAddress(user, redeemed)
    return { emailVerified: true }
  })
}
