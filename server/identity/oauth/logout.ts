/** The end of a session. https://openid.net/specs/openid-connect-rpinitiated-1_0.html */
import { redirectUrisOf } from '../../../shared/access/credentials/clients.ts'
import { parseReference, type Resource, referenceIn } from '../../../shared/fhir/resource.ts'
import type { Services } from '../../../shared/services.ts'
import { type Context, caller } from '../../context.ts'
import { findClient } from '../auth/apps.ts'
import { clearCookie, isNavigation, sessionCookie, sessionCookies } from '../browser.ts'
import { audit, clientIdOf, isDigestOf, loginIdOf, readLogin, revokeLogin } from '../logins.ts'

/** Ends the caller's own Login. */
export async function logOut(services: Services, ctx: Context): Promise<void> {
  const { principal } = caller(ctx)
  const { loginId } = principal
  const login = loginId === undefined ? undefined : await readLogin(services, loginId)
  if (login !== undefined) await end(services, ctx, login)
}

/** A browser that follows a link: answers where it goes next. */
export async function logOutBrowser(services: Services, ctx: Context): Promise<string> {
  const hint = text(ctx.query.id_token_hint)
  // OpenID Connect RP-Initiated Logout §4: an expired hint is a hint all the same.
  const hinted = hint === undefined ? undefined : await services.tokens.readIdToken(hint)
  const logins = isNavigation(ctx, services.config) ? await loginsOfCookies(services, ctx) : []
  const byHint = hinted === undefined ? undefined : await readLogin(services, hinted.loginId)
  for (const login of byHint === undefined ? logins : [byHint]) await end(services, ctx, login)
  const [known] = byHint === undefined ? logins : [byHint]
  const clientId = text(ctx.query.client_id) ?? (known && clientIdOf(known))
  const client = clientId === undefined ? undefined : await findClient(services, clientId)
  return nextAddress(
    services,
    client,
    text(ctx.query.post_logout_redirect_uri),
    text(ctx.query.state),
  )
}

function nextAddress(
  { config }: Services,
  client: Resource | undefined,
  wanted: string | undefined,
  state: string | undefined,
): string {
  if (wanted === undefined || client === undefined || !URL.canParse(wanted)) {
    return `${config.appUrl}signin`
  }
  const url = new URL(wanted)
  const isHttp = url.protocol === 'https:' || url.protocol === 'http:'
  const origins = redirectUrisOf(client).filter((uri) => URL.canParse(uri))
  const isKnown = origins.some((uri) => new URL(uri).origin === url.origin)
  if (!isHttp || !isKnown) return `${config.appUrl}signin`
  if (state !== undefined) url.searchParams.set('state', state)
  return url.href
}

async function loginsOfCookies(services: Services, ctx: Context): Promise<Resource[]> {
  const found = await Promise.all(
    sessionCookies(ctx, services.config).map(async (cookie) => {
      const id = loginIdOf(cookie)
      const login = id === undefined ? undefined : await readLogin(services, id)
      return login !== undefined && isDigestOf(login.cookie, cookie) ? [login] : []
    }),
  )
  return found.flat()
}

async function end(services: Services, ctx: Context, login: Resource): Promise<void> {
  await revokeLogin(services, login.id ?? '')
  const clientId = clientIdOf(login)
  if (clientId !== undefined) clearCookie(ctx, services.config, sessionCookie(clientId))
  audit(services, ctx, {
    kind: 'logout',
    outcome: '0',
    what: 'Logout',
    who: referenceIn(login.user),
    projectId: parseReference(referenceIn(login.project))?.id,
  })
}

function text(value: string | string[] | undefined): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined
}
