/**
 * An unfinished Login belongs to the browser that began it on one of our pages: a cookie of its own is demanded at
 * every step. A Login that a client library began has no cookie. Whoever goes on with it holds its id, and its
 * code is worth nothing without the verifier.
 */
import { randomBytes } from 'node:crypto'
import type { Config } from '../../shared/config/config.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Context } from '../context.ts'
import { loginCookie, readCookie, senderOf, setCookie } from './browser.ts'
import { digestOf, isDigestOf, UNGRANTED_MS } from './logins.ts'

const SECRET_BYTES = 32

/** Made with every bound Login, so that no cookie of an earlier one can be planted. */
export function newBinding(): { readonly secret: string; readonly digest: string } {
  const secret = randomBytes(SECRET_BYTES).toString('base64url')
  return { secret, digest: digestOf(secret) }
}

export function bindLogin(ctx: Context, config: Config, loginId: string, secret: string): void {
  setCookie(ctx, config, loginCookie(loginId), secret, UNGRANTED_MS / 1000)
}

export function isBound(login: Resource): boolean {
  return login.browser !== undefined
}

/** True when the request may go on with this Login. */
export function isFromHere(ctx: Context, config: Config, login: Resource): boolean {
  if (!isBound(login)) return true
  if (senderOf(ctx, config) === 'foreign') return false
  return isDigestOf(login.browser, readCookie(ctx, config, loginCookie(login.id ?? '')) ?? '')
}
