/** Form bodies of `/oauth2/**`: RFC 6749 §3.2. An empty value equals an absent one. */
import type { Context } from '../../context.ts'
import { readBody } from '../../middleware/body.ts'
import { OAuthError } from '../../middleware/failures.ts'

const FORM_BYTES = 65_536

/** Errors: `invalid_request` for another type and for parameters that are sent more than once. */
export async function readForm(ctx: Context): Promise<URLSearchParams> {
  if (!ctx.is('application/x-www-form-urlencoded')) {
    throw new OAuthError('invalid_request', 'Body must be application/x-www-form-urlencoded')
  }
  const body = await readBody(ctx, FORM_BYTES)
  const form = new URLSearchParams(body?.toString('utf8'))
  const names = [...form.keys()]
  if (new Set(names).size < names.length) {
    throw new OAuthError('invalid_request', 'A parameter is repeated')
  }
  return form
}

export function optional(form: URLSearchParams, name: string): string | undefined {
  return form.get(name) || undefined
}

/** Errors: `invalid_request`. */
export function required(form: URLSearchParams, name: string, label = name): string {
  const value = form.get(name)
  if (!value) throw new OAuthError('invalid_request', `Missing ${label}`)
  return value
}
