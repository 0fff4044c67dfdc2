/** reCAPTCHA: asked for only where a secret is configured, for the server or for the Project's site. */
import { badRequest } from '../../../shared/errors.ts'
import { isObject, type Resource } from '../../../shared/fhir/resource.ts'
import { fetchOutside } from '../../../shared/platform/outbound/fetch-outside.ts'
import type { Services } from '../../../shared/services.ts'
import type { Fields } from './fields.ts'

const PATIENCE_MS = 5000

export interface Captcha {
  readonly token: string | undefined
  readonly siteKey: string | undefined
}

export function captchaIn(fields: Fields): Captcha {
  return { token: fields.optional('recaptchaToken'), siteKey: fields.optional('recaptchaSiteKey') }
}

/** Errors: 400. */
export async function requireHuman(
  { config }: Services,
  { token, siteKey }: Captcha,
  project: Resource | undefined,
): Promise<void> {
  const sites = verifyingSites(project)
  const named = sites.find(({ recaptchaSiteKey }) => recaptchaSiteKey === siteKey)
  // A key that nobody knows is no way around: its tokens do not stand up to another secret.
  const site = named ?? (config.recaptchaSecret === undefined ? sites[0] : undefined)
  const secret = site?.recaptchaSecretKey ?? config.recaptchaSecret
  if (secret === undefined) return
  if (token === undefined) throw badRequest('Recaptcha token is required', 'recaptchaToken')
  const { body } = await fetchOutside(
    {
      url: config.recaptchaUrl,
      method: 'POST',
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      body: new URLSearchParams({ secret, response: token }).toString(),
      redirect: 'error',
      timeoutMs: PATIENCE_MS,
    },
    config.hookTargets,
    new AbortController().signal,
  ).catch(() => ({ body: Buffer.from('{}') }))
  if (!/"success":\s*true/.test(body.toString('utf8'))) {
    throw badRequest('Recaptcha failed', 'recaptchaToken')
  }
}

interface VerifyingSite {
  readonly recaptchaSiteKey: unknown
  readonly recaptchaSecretKey: string
}

function verifyingSites(project: Resource | undefined): readonly VerifyingSite[] {
  const sites = Array.isArray(project?.site) ? project.site.filter(isObject) : []
  return sites.flatMap(({ recaptchaSiteKey, recaptchaSecretKey }) =>
    typeof recaptchaSecretKey === 'string' ? [{ recaptchaSiteKey, recaptchaSecretKey }] : [],
  )
}
