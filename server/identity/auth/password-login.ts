/** `/auth/login`: a sign-in with a password. */

import { type Device, isDeviceCurrent } from '../../../shared/access/credentials/devices.ts'
import type { Applicant } from '../../../shared/access/credentials/hashing.ts'
import {
  hashPassword,
  isOutdated,
  verifyPassword,
} from '../../../shared/access/credentials/passwords.ts'
import { badRequest } from '../../../shared/core/errors.ts'
import { type Resource, referenceTo } from '../../../shared/fhir/resource.ts'
import {
  anonymousGuess,
  checkGuess,
  deviceGuess,
  isRegular,
  rememberRegular,
  requireNoPause,
} from '../../../shared/identity/guesses.ts'
import { findUserForSignIn, patchUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import type { Context } from '../../http/context.ts'
import { rateLimitAddress } from '../../middleware/limits.ts'
import { readDeviceCookie } from '../browser.ts'
import { audit } from '../sign-in-audit.ts'
import { type App, findApp, type SignInRequest, signInRequest } from './apps.ts'
import type { SignInFields } from './fields.ts'
import { beginLogin, type LoginStep, loginResult } from './login-steps.ts'

const SHORTEST = 5
const LONGEST = 1024

/** Unknown users and wrong passwords get the same reply after the same work. Errors: 400, 429. */
export async function logIn(
  services: Services,
  ctx: Context,
  fields: SignInFields,
): Promise<LoginStep> {
  const email = fields.email('email')
  const password = fields.required('password', 'Password', SHORTEST, LONGEST)
  const request = signInRequest(fields)
  fields.check()
  const app = await findApp(services, ctx, request)
  const device = readDeviceCookie(services, ctx, email)
  const address = rateLimitAddress(ctx.ip)
  const guessed = device ? deviceGuess('password', device.id) : anonymousGuess(email, address)
  // Checked before queueing, so that callers under a pause take no place in the queue.
  const [isKnownHere] = await Promise.all([
    isRegular(services.redis, email, address),
    requireNoPause(services.redis, guessed),
  ])
  const trust = device ? 'proven' : isKnownHere ? 'regular' : 'stranger'
  const applicant: Applicant = { account: email, address, trust }
  const attempt = { email, password, app, request, device }
  const login = await services.hashing.run(applicant, () => prove(services, ctx, attempt))
  return await loginResult(services, ctx, login)
}

interface Attempt {
  readonly email: string
  readonly password: string
  readonly app: App
  readonly request: SignInRequest
  readonly device: Device | undefined
}

async function prove(services: Services, ctx: Context, attempt: Attempt): Promise<Resource> {
  const { email, password, app, request, device } = attempt
  const { redis, repository } = services
  const user = await findUserForSignIn(repository, email, app.projectId)
  const isKnown = user !== undefined && device !== undefined && isDeviceCurrent(device, user)
  const address = rateLimitAddress(ctx.ip)
  const guessed = isKnown ? deviceGuess('password', device.id) : anonymousGuess(email, address)
  const stored = typeof user?.passwordHash === 'string' ? user.passwordHash : undefined
  const login = await checkGuess(redis, guessed, user?.id ?? 'nobody', async () => {
    const isRight = await verifyPassword(password, stored)
    if (!isRight || user === undefined) return undefined
    return await beginLogin(services, ctx, { signIn: { app, request }, user, method: 'password' })
  })
  if (user === undefined || login === undefined) {
    const who = user === undefined ? undefined : referenceTo(user)
    const what = 'Sign-in refused'
    audit(services, ctx, { kind: 'login', outcome: '4', what, who, projectId: app.projectId })
    throw badRequest('Email or password is invalid')
  }
  await rememberRegular(redis, email, address)
  if (stored !== undefined && isOutdated(stored)) {
    const passwordHash = await hashPassword(password)
    await patchUser(repository, user.id ?? '', { passwordHash })
  }
  return login
}
