/**
 * Classifies the origin of requests by headers that browsers set and scripts cannot, and decides which cookies count.
 * A cookie never counts for a script of another origin: the JSON routes serve those without it.
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
 * `page`: a script of our own pages, or of the app at APP_URL on the same site. `foreign`: any other browser request.
 * `program`: not a browser.
 */
type Sender = 'page' | 'foreign' | 'program'

/** https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header; browsers send it over https and to loopback. */
export function classifySender(ctx: Context, config: Config): Sender {
  const site = ctx.get('Sec-Fetch-Site')
  const origin = ctx.get('Origin')
  if (origin === '' && site === '') return 'program'
  if (origin === '') return site === 'same-origin' ? 'page' : 'foreign'
  if (site === 'cross-site' || !isOwnOrigin(config, origin)) return 'foreign'
  // Browsers omit the header over plain HTTP, and keep the cookie only if APP_URL is on the same site.
  const isSameHost = new URL(origin).hostname === new URL(config.baseUrl).hostname
  return site !== '' || isSameHost ? 'page' : 'foreign'
}

/** True for navigation of the window or of a same-site frame; false for fetches and foreign posts. */
export function isNavigation(ctx: Context, config: Config): boolean {
  const [mode, target, site, origin] = [
    ctx.get('Sec-Fetch-Mode'),
    ctx.get('Sec-Fetch-Dest'),
    ctx.get('Sec-Fetch-Site'),
    ctx.get('Origin'),
  ]
  // Browsers send all of them or none; some HTTP libraries send only a mode.
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
    // Koa does not set secure cookies over HTTP, as seen behind a proxy.
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

/** Returns the first ten session cookies of any client. */
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
 * Keeps sibling hosts from setting the cookie: browsers reject __Host- with a Domain or another Path.
 * https://www.ietf.org/archive/id/draft-ietf-httpbis-rfc6265bis-20.html#name-cookie-name-prefixes
 */
function prefix({ baseUrl }: Config): string {
  const { protocol, pathname } = new URL(baseUrl)
  if (protocol !== 'https:') return ''
  return pathname === '/' ? '__Host-' : '__Secure-'
}

// A Login begun on our pages requires its cookie at every step. A Login begun by a client library has no cookie: its
// id suffices to continue, but its code is useless without the verifier.

const SECRET_BYTES = 32

/** Creates a new binding per Login, so that an earlier cookie cannot be planted. */
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

/** True if the request may continue this Login. */
export function isFromSameBrowser(ctx: Context, config: Config, login: Resource): boolean {
  if (!isBoundToBrowser(login)) return true
  if (classifySender(ctx, config) === 'foreign') return false
  return matchesDigest(login.browser, readCookie(ctx, config, loginCookie(login.id ?? '')) ?? '')
}

// Marks a browser as known by an earlier sign-in (devices.ts); one cookie per e-mail address.

const MAX_AGE_SECONDS = 90 * 86_400

/** Returns the device of the cookie, without a check that its User's credentials are unchanged. */
export function readDeviceCookie(
  services: Services,
  ctx: Context,
  email: string,
): Device | undefined {
  const { config, devices } = services
  if (classifySender(ctx, config) === 'foreign') return undefined
  return devices.read(readCookie(ctx, config, deviceCookieName(email)) ?? '')
}

/** Remembers the browser after a full sign-in; a resumed session proves nothing new. */
export async function rememberSignIn(services: Services, ctx: Context, login: Resource) {
  if (login.authMethod !== 'password' || login.bySession === true) return
  const user = await readUser(services.repository, loginUserId(login) ?? '')
  if (user !== undefined) rememberDevice(services, ctx, user)
}

/** Renews a known device after its signed-in User changed credentials. */
export async function renewDevice(services: Services, ctx: Context, before: Resource) {
  const device = readDeviceCookie(services, ctx, String(before.email))
  if (device === undefined || !isDeviceCurrent(device, before)) return
  const user = await readUser(services.repository, device.userId)
  if (user !== undefined) rememberDevice(services, ctx, user)
}

/**
 * Remembers the device of a fully authenticated User and keeps its id. Scripts of other origins neither send nor
 * receive the cookie.
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
