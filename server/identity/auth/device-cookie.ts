/** The cookie by which a browser is known to have signed in before (devices.ts); one for each e-mail address. */
import { hash } from 'node:crypto'
import { type Device, isDeviceOf } from '../../../shared/access/credentials/devices.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import { readUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/services.ts'
import type { Context } from '../../context.ts'
import { readCookie, senderOf, setCookie } from '../browser.ts'
import { userIdOf } from '../logins.ts'

const MAX_AGE_SECONDS = 90 * 86_400

/** The device that the cookie names; whether its User still has the same credentials is not known here. */
export function deviceIn(services: Services, ctx: Context, email: string): Device | undefined {
  const { config, devices } = services
  if (senderOf(ctx, config) === 'foreign') return undefined
  return devices.read(readCookie(ctx, config, nameOf(email)) ?? '')
}

/** After a sign-in with a password and every other factor; a session that only goes on proves nothing anew. */
export async function rememberSignIn(services: Services, ctx: Context, login: Resource) {
  if (login.authMethod !== 'password' || login.bySession === true) return
  const user = await readUser(services.repository, userIdOf(login) ?? '')
  if (user !== undefined) rememberDevice(services, ctx, user)
}

/** After a change of credentials by a person who is signed in; a device that was known stays known. */
export async function renewDevice(services: Services, ctx: Context, before: Resource) {
  const device = deviceIn(services, ctx, String(before.email))
  if (device === undefined || !isDeviceOf(device, before)) return
  const user = await readUser(services.repository, device.userId)
  if (user !== undefined) rememberDevice(services, ctx, user)
}

/**
 * For a User who has proven everything that a sign-in takes. The device keeps its id, if it has one. A script of
 * another origin neither shows the cookie nor gets it.
 */
export function rememberDevice(services: Services, ctx: Context, user: Resource): void {
  if (senderOf(ctx, services.config) === 'foreign') return
  const email = String(user.email)
  const device = deviceIn(services, ctx, email)
  const value = services.devices.issue(user, device?.userId === user.id ? device?.id : undefined)
  setCookie(ctx, services.config, nameOf(email), value, MAX_AGE_SECONDS)
}

function nameOf(email: string): string {
  return `botica-device-${hash('sha256', email).slice(0, 16)}`
}
