/** The end of a session. https://openid.net/specs/openid-connect-rpinitiated-1_0.html */
import { redirectUrisOf } from '../../shared/access/clients.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { parseReference } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import { referenceIn } from '../../shared/store/memberships.ts'
import { findClient } from '../auth/apps.ts'
import { audit } from '../auth/audit.ts'
import { type Context, caller } from '../context.ts'
import { clientIdOf, isDigestOf, loginIdOf, readLogin, revokeLogin } from '../logins.ts'

/** Of the caller's own Login. */
export async function logOut(services: Services, ctx: Context): Promise<void> {
  const { principal } = caller(ctx)
  const { loginId } = principal
  const login = loginId === undefined ? undefined : await readLogin(services, loginId)
  if (login !== undefined) await end(services, ctx, login)
}

/** A browser that follows a link: answers where it goes next. */
export async function logOutBrowser(services: Services, ctx: Context): Promise<string> {
  const hint = text(ctx.query.id_token_hint)
  const hinted = hint === undefined ? undefined : await services.tokens.loginOfIdToken(hint)
  const logins = await loginsOfCookies(services, ctx)
  const byHint = hinted === undefined ? undefined : await readLogin(services, hinted)
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
  const cookies = [...ctx.get('Cookie').matchAll(/(?:^|;\s*)medplum-[\w.-]+=([\w-]+)/g)].slice(
    0,
    10,
  )
  const found = await Promise.all(
    cookies.map(async ([, cookie = '']) => {
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
  if (clientId !== undefined) {
    ctx.append('Set-Cookie', `medplum-${clientId}=; Max-Age=0; Path=/; HttpOnly`)
  }
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
