/**
 * One spelling a path, before anything looks at it: no `/api` prefix, no empty segments, no trailing slash, and nothing
 * %-encoded that need not be (RFC 3986 §6.2.2.2), nor `$`. Everything behind compares paths as they are, in one
 * case; what stands between two readings, a dot segment or a backslash, is found nowhere.
 */
import { HttpError, issue, notFound, outcome } from '../../shared/errors.ts'
import type { Middleware } from '../context.ts'

const LONGEST_URL = 32_768
/** Most requests: segments of these characters, the first of them not `api`. */
const PLAIN = /^(?!\/api(?:\/|$))(?:\/[\w$-][\w$.~-]*)+$/
const AMBIGUOUS = /\\|\/\.\.?(?:\/|$)/

/** Errors: 414, 404. */
export const paths: Middleware = (ctx, next) => {
  if (ctx.url.length > LONGEST_URL) {
    throw new HttpError(414, outcome(undefined, issue('error', 'too-long', 'URI too long')))
  }
  if (!PLAIN.test(ctx.path)) ctx.path = oneSpelling(ctx.path)
  return next()
}

/** Errors: 404. */
function oneSpelling(path: string): string {
  const decoded = path.replace(/%[0-9a-f]{2}/gi, (code) => {
    const character = String.fromCharCode(Number.parseInt(code.slice(1), 16))
    return /[\w.~$-]/.test(character) ? character : code.toUpperCase()
  })
  if (AMBIGUOUS.test(decoded)) throw notFound()
  const segments = decoded.split('/').filter((segment) => segment !== '')
  if (segments[0] === 'api') segments.shift()
  return `/${segments.join('/')}`
}
