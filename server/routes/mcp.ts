/** `/mcp`: tools for language models. */
import { issuerUrl } from '../../shared/access/credentials/tokens.ts'
import type { Config } from '../../shared/core/config/config.ts'
import { forbidden, HttpError } from '../../shared/core/errors.ts'
import type { Middleware, Web } from '../http/context.ts'
import { answerMcp } from '../mcp/endpoint.ts'
import { isAllowedOrigin } from '../middleware/headers.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const TEXTS: RouteTexts = {
  'POST /mcp': {
    summary: 'Call tools as a language model',
    description:
      'The Model Context Protocol over streamable HTTP, without sessions. The tools read and search resources, query by GraphQL, send FHIR requests, and run the bots with the extension `bot-tool`.',
    body: {
      jsonrpc: 'text!: 2.0',
      id: 'text: Of the request; a notification has none',
      method: 'text!: initialize, server/discover, tools/list or tools/call',
      params: 'object: Of the method',
    },
    example: { jsonrpc: '2.0', id: '1', method: 'tools/list', params: {} },
    answer: 'object',
  },
}
/** Clients request this scope by default; writes need a word such as `user/Observation.cu`. */
const USUAL_SCOPE = 'openid offline_access user/*.rs'

export function mcpRoutes(web: Web): RouteFamily {
  const { config } = web.services
  const routes = createRoutes({ texts: TEXTS, outside: [requireOrigin(config), challenge(config)] })
  routes.post('/mcp', 'signed-in', (ctx) => answerMcp(ctx, web))
  return routes
}

/** Against pages that reach the service under another name. Errors: 403. */
function requireOrigin(config: Config): Middleware {
  return (ctx, next) => {
    const { origin } = ctx.req.headers
    if (origin !== undefined && !isAllowedOrigin(config, origin)) throw forbidden('origin')
    return next()
  }
}

/** Adds the address and the scope of the sign-in to a 401: https://www.rfc-editor.org/rfc/rfc9728#section-5.1 */
function challenge({ baseUrl }: Config): Middleware {
  return async (ctx, next) => {
    try {
      await next()
    } catch (error) {
      if (!(error instanceof HttpError) || error.status !== 401) throw error
      const resource = `${issuerUrl(baseUrl, ctx.state.projectScope)}mcp`.slice(baseUrl.length)
      const metadata = `${baseUrl}.well-known/oauth-protected-resource/${resource}`
      const where = `resource_metadata="${metadata}", scope="${USUAL_SCOPE}"`
      const own = error.headers['WWW-Authenticate'] ?? 'Bearer'
      const headers = { ...error.headers, 'WWW-Authenticate': `${own}, ${where}` }
      throw new HttpError(401, error.outcome, { headers, cause: error })
    }
  }
}
