/**
 * Where a request comes from, by the headers that browsers set and scripts cannot, and the cookies that count
 * by it. A cookie never counts for a script of another origin: the JSON routes answer those, too, without it.
 */

import { hash, randomBytes } from 'node:crypto'
import { type Device, isDeviceCurrent } from '../../shared/access/credentials/devices.ts'
import type { Config } from '../../shared/core/config/config.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { readUser } from '../../shared/projects/users.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Context } from '../http/context.ts'
import { hashSecret, loginUserId, matchesDigest, UNGRANTED_MS } from './login-store.ts'

/**
 * `page`: a script of our own pages, or of the app at APP_URL on the same site. `foreign`: anything else in a
 * browser. `program`: no browser says that it is one.
 */
type Sender = 'page' | 'foreign' | 'program'

/** https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header; browsers send it over https and to loopback. */
export function classifySender(ctx: Context, config: Config): Sender {
  const site = ctx.get('Sec-Fetch-Site')
  const origin = ctx.get('Origin')
  if (origin === '' && site === '') return 'program'
  if (origin === '') return site === 'same-origin' ? 'page' : 'foreign'
  if (site === 'cross-site' || !isOwnOrigin(config, origin)) return 'foreign'
  // Over plain HTTP no browser says whether APP_URL is on the same site, and only then it would keep the cookie.
  const isSameHost = new URL(origin).hostname === new URL(config.baseUrl).hostname
  return site !== '' || isSameHost ? 'page' : 'foreign'
}

/** A navigation of the whole window, or of a frame on our own site; not what a script fetches or posts from elsewhere. */
export function isNavigation(ctx: Context, config: Config): boolean {
  const [mode, target, site, origin] = [
    ctx.get('Sec-Fetch-Mode'),
    ctx.get('Sec-Fetch-Dest'),
    ctx.get('Sec-Fetch-Site'),
    ctx.get('Origin'),
  ]
  // A browser sends all of them or none; some HTTP libraries send a mode alone.
  if (site !== '' && mode !== 'navigate') return false
  if (site === 'cross-site' && target !== '' && target !== 'document') return false
  return origin === '' || isOwnOrigin(config, origin)
}

function isOwnOrigin({ baseUrl, appUrl }: Config, origin: string): boolean {
  return origin === new URL(baseUrl).origin || origin === new URL(appUrl).origin
}

export function sessionCookie(clientId: string): string {
  return `medplum-${clientId}`
}

/** Binds an unfinished Login to the browser that began it. */
export function loginCookie(loginId: string): string {
  return `botica-login-${loginId}`
}

interface Cookie {
  readonly name: string
  readonly value: string
  readonly seconds: number
}

export function setCookie(ctx: Context, config: Config, { name, value, seconds }: Cookie): void {
  const { protocol, pathname } = new URL(config.baseUrl)
  ctx.append(
    'Set-Cookie',
    // Koa refuses to send a secure cookie over what it takes for plain HTTP behind a proxy.
    [
      `${prefix(config)}${name}=${value}`,
      `Max-Age=${seconds}`,
      `Path=${pathname}`,
      'HttpOnly',
      ...(protocol === 'https:' ? ['Secure'] : []),
      'SameSite=Lax',
    ].join('; '),
  )
}

export function clearCookie(ctx: Context, config: Config, name: string): void {
  setCookie(ctx, config, { name, value: '', seconds: 0 })
}

export function readCookie(ctx: Context, config: Config, name: string): string | undefined {
  return ctx.cookies.get(`${prefix(config)}${name}`)
}

/** The first ten session cookies, whatever their client. */
export function sessionCookies(ctx: Context, config: Config): readonly string[] {
  const start = `${prefix(config)}medplum-`
  return ctx
    .get('Cookie')
    .split(/;\s*/)
    .filter((item) => item.startsWith(start))
    .slice(0, 10)
    .map((item) => item.slice(item.indexOf('=') + 1))
}

/**
 * The prefix keeps a neighbouring host from setting the cookie: __Host- is refused with a Domain or another Path.
 * https://www.ietf.org/archive/id/draft-ietf-httpbis-rfc6265bis-20.html#name-cookie-name-prefixes
 */
function prefix({ baseUrl }: Config): string {
  const { protocol, pathname } = new URL(baseUrl)
  if (protocol !== 'https:') return ''
  return pathname === '/' ? '__Host-' : '__Secure-'
}

// An unfinished Login belongs to the browser that began it on one of our pages: a cookie of its own is demanded at
// every step. A Login that a client library began has no cookie. Whoever goes on with it holds its id, and its
// code is worth nothing without the verifier.

const SECRET_BYTES = 32

/** Made with every bound Login, so that no cookie of an earlier one can be planted. */
export function newBinding(): { readonly secret: string; readonly digest: string } {
  const secret = randomBytes(SECRET_BYTES).toString('base64url')
  return { secret, digest: hashSecret(secret) }
}

export function bindLogin(ctx: Context, config: Config, loginId: string, secret: string): void {
  setCookie(ctx, config, {
    name: loginCookie(loginId),
    value: secret,
    seconds: UNGRANTED_MS / 1000,
  })
}

export function isBoundToBrowser(login: Resource): boolean {
  return login.browser !== undefined
}

/** True when the request may go on with this Login. */
export function isFromSameBrowser(ctx: Context, config: Config, login: Resource): boolean {
  if (!isBoundToBrowser(login)) return true
  if (classifySender(ctx, config) === 'foreign') return false
  return matchesDigest(login.browser, readCookie(ctx, config, loginCookie(login.id ?? '')) ?? '')
}

// The cookie by which a browser is known to have signed in before (devices.ts); one for each e-mail address.

const MAX_AGE_SECONDS = 90 * 86_400

/** The device that the cookie names; whether its User still has the same credentials is not known here. */
export function readDeviceCookie(
  services: Services,
  ctx: Context,
  email: string,
): Device | undefined {
  const { config, devices } = services
  if (classifySender(ctx, config) === 'foreign') return undefined
  return devices.read(readCookie(ctx, config, deviceCookieName(email)) ?? '')
}

/** After a sign-in with a password and every other factor; a session that only goes on proves nothing anew. */
export async function rememberSignIn(services: Services, ctx: Context, login: Resource) {
  if (login.authMethod !== 'password' || login.bySession === true) return
  const user = await readUser(services.repository, loginUserId(login) ?? '')
  if (user !== undefined) rememberDevice(services, ctx, user)
}

/** After a change of credentials by a person who is signed in; a device that was known stays known. */
export async function renewDevice(services: Services, ctx: Context, before: Resource) {
  const device = readDeviceCookie(services, ctx, String(before.email))
  if (device === undefined || !isDeviceCurrent(device, before)) return
  const user = await readUser(services.repository, device.userId)
  if (user !== undefined) rememberDevice(services, ctx, user)
}

/**
 * For a User who has proven everything that a sign-in takes. The device keeps its id, if it has one. A script of
 * another origin neither shows the cookie nor gets it.
 */
export function rememberDevice(services: Services, ctx: Context, user: Resource): void {
  if (classifySender(ctx, services.config) === 'foreign') return
  const email = String(user.email)
  const device = readDeviceCookie(services, ctx, email)
  const value = services.devices.issue(user, device?.userId === user.id ? device?.id : undefined)
  setCookie(ctx, services.config, {
    name: deviceCookieName(email),
    value,
    seconds: MAX_AGE_SECONDS,
  })
}

function deviceCookieName(email: string): string {
  return `botica-device-${hash('sha256', email).slice(0, 16)}`
}
