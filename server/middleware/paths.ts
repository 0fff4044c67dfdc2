/** One spelling a path: no `/api` prefix, `$` for `%24`, no trailing slash. */
import { HttpError } from '../../shared/errors.ts'
import { issue, outcome } from '../../shared/fhir/outcome.ts'
import type { Middleware } from '../context.ts'

const LONGEST_URL = 32_768

/** Errors: 414. */
export const paths: Middleware = (ctx, next) => {
  if (ctx.url.length > LONGEST_URL) {
    throw new HttpError(414, outcome(undefined, issue('error', 'too-long', 'URI too long')))
  }
  const path = ctx.path
    .replace(/%24/g, '$')
    .replace(/^\/api(?=\/|$)/, '')
    .replace(/\/+$/, '')
  ctx.path = path === '' ? '/' : path
  return next()
}
