/**
 * Where a request comes from, by the headers that browsers set and scripts cannot, and the cookies that count
 * by it. A cookie never counts for a script of another origin: the JSON routes answer those, too, without it.
 */
import type { Config } from '../../shared/config/config.ts'
import type { Context } from '../context.ts'

/**
 * `page`: a script of our own pages, or of the app at APP_URL on the same site. `foreign`: anything else in a
 * browser. `program`: no browser says that it is one.
 */
export type Sender = 'page' | 'foreign' | 'program'

/** https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header; browsers send it over https and to loopback. */
export function senderOf(ctx: Context, config: Config): Sender {
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

export function setCookie(
  ctx: Context,
  config: Config,
  name: string,
  value: string,
  seconds: number,
): void {
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
  setCookie(ctx, config, name, '', 0)
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
 * What keeps a neighbouring host from setting the cookie: __Host- is refused with a Domain or another Path.
 * https://www.ietf.org/archive/id/draft-ietf-httpbis-rfc6265bis-20.html#name-cookie-name-prefixes
 */
function prefix({ baseUrl }: Config): string {
  const { protocol, pathname } = new URL(baseUrl)
  if (protocol !== 'https:') return ''
  return pathname === '/' ? '__Host-' : '__Secure-'
}
