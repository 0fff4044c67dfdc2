/**
 * Flat JSON bodies of `/auth/**`: an empty text equals an absent field; every bad field is reported, including
 * reCAPTCHA's.
 */
import { badRequest, type Issue, invalid, issue } from '../../../shared/core/errors.ts'
import { type Resource, toObjects } from '../../../shared/fhir/resource.ts'
import { fetchOutbound } from '../../../shared/outbound/fetch-outside.ts'
import { EMAIL } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import { isUuid } from '../../../shared/store/rows/context.ts'
import { readJsonObject } from '../../http/body.ts'
import type { Context } from '../../http/context.ts'

const BODY_BYTES = 65_536

export interface SignInFields {
  /** Between `min` and `max` characters; errors name it by `label`. */
  required(name: string, label: string, min?: number, max?: number): string
  optional(name: string): string | undefined
  email(name: string): string
  uuid(name: string): string
  flag(name: string): boolean | undefined
  /** Errors: 400 with one issue per bad field. */
  check(): void
}

/** Errors: 400, 413, 415. */
export async function readFields(ctx: Context): Promise<SignInFields> {
  const body = await readJsonObject(ctx, BODY_BYTES)
  const issues: Issue[] = []
  const complain = (name: string, text: string) => {
    issues.push(issue('error', 'invalid', text, { expression: name }))
  }
  const optional = (name: string): string | undefined => {
    const value = body[name]
    if (value === undefined || value === null || value === '') return undefined
    if (typeof value === 'string') return value
    complain(name, `${name} must be a text`)
    return undefined
  }
  const required = (name: string, label: string, min = 1, max = 4096): string => {
    const value = optional(name)
    const isFine = value !== undefined && value.length >= min && value.length <= max
    if (!isFine && !issues.some(({ expression }) => expression?.[0] === name)) {
      const range = min === 1 ? 'is required' : `must be between ${min} and ${max} characters`
      complain(
        name,
        `${label} ${value !== undefined && value.length > max ? 'is too long' : range}`,
      )
    }
    return value ?? ''
  }
  return {
    required,
    optional,
    email(name) {
      const value = optional(name)?.trim() ?? ''
      if (!EMAIL.test(value) || value.length > 254)
        complain(name, 'Valid email address is required')
      return value.toLowerCase()
    },
    uuid(name) {
      const value = optional(name) ?? ''
      if (!isUuid(value)) complain(name, `${name} must be an id`)
      return value.toLowerCase()
    },
    flag(name) {
      const value = body[name]
      if (value === true || value === 'true') return true
      if (value === false || value === 'false') return false
      if (value !== undefined && value !== null && value !== '') {
        complain(name, `${name} must be true or false`)
      }
      return undefined
    },
    check() {
      if (issues.length > 0) throw invalid(issues)
    },
  }
}

// reCAPTCHA: required only if a secret is configured for the server or for the Project's site.

const PATIENCE_MS = 5000

interface Captcha {
  readonly token: string | undefined
  readonly siteKey: string | undefined
}

export function readCaptcha(fields: SignInFields): Captcha {
  return { token: fields.optional('recaptchaToken'), siteKey: fields.optional('recaptchaSiteKey') }
}

/** Errors: 400. */
export async function verifyCaptcha(
  { config }: Services,
  { token, siteKey }: Captcha,
  project: Resource | undefined,
): Promise<void> {
  const sites = verifyingSites(project)
  const named = sites.find(({ recaptchaSiteKey }) => recaptchaSiteKey === siteKey)
  // An unknown key cannot bypass the check: its tokens fail against another secret.
  const site = named ?? (config.recaptchaSecret === undefined ? sites[0] : undefined)
  const secret = site?.recaptchaSecretKey ?? config.recaptchaSecret
  if (secret === undefined) return
  if (token === undefined) throw badRequest('Recaptcha token is required', 'recaptchaToken')
  const { body } = await fetchOutbound(
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

function verifyingSites(project: Resource | undefined) {
  return toObjects(project?.site).flatMap(({ recaptchaSiteKey, recaptchaSecretKey }) =>
    typeof recaptchaSecretKey === 'string' ? [{ recaptchaSiteKey, recaptchaSecretKey }] : [],
  )
}
