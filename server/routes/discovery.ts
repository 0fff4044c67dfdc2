/**
 * What a client can find out by itself: RFC 8414, RFC 9728, SMART App Launch. Only what is served is
 * named here.
 */
import Router from '@koa/router'
import type { Config } from '../../shared/config.ts'
import type { State, Web } from '../context.ts'

const SCOPES = ['openid', 'profile', 'email', 'phone', 'address', 'fhirUser']

export function discoveryRoutes({ services }: Web): Router<State> {
  const router = new Router<State>()
  const { config, tokens } = services
  const issuer = issuerOf(config)
  const metadata = {
    ...issuer,
    subject_types_supported: ['public'],
    id_token_signing_alg_values_supported: ['ES256'],
    scopes_supported: SCOPES,
  }

  router.get('/.well-known/jwks.json', (ctx) => {
    ctx.set('Cache-Control', 'public, max-age=300')
    ctx.remove('Pragma')
    ctx.body = { keys: tokens.keys.keys.map((key) => key.publicJwk) }
  })
  router.get(
    ['/.well-known/openid-configuration', '/.well-known/oauth-authorization-server'],
    (ctx) => {
      ctx.body = metadata
    },
  )
  router.get(
    ['/.well-known/smart-configuration', '/fhir/R4/.well-known/smart-configuration'],
    (ctx) => {
      ctx.body = {
        ...issuer,
        scopes_supported: ['openid', 'fhirUser', 'system/*.cruds'],
        capabilities: ['client-confidential-symmetric', 'permission-v1', 'permission-v2'],
      }
    },
  )
  router.get('/.well-known/oauth-protected-resource', (ctx) => {
    ctx.body = {
      resource: `${config.baseUrl}fhir/R4`,
      authorization_servers: [config.baseUrl],
      scopes_supported: SCOPES,
      bearer_methods_supported: ['header'],
    }
  })
  return router
}

function issuerOf({ baseUrl }: Config) {
  return {
    issuer: baseUrl,
    token_endpoint: `${baseUrl}oauth2/token`,
    userinfo_endpoint: `${baseUrl}oauth2/userinfo`,
    jwks_uri: `${baseUrl}.well-known/jwks.json`,
    introspection_endpoint: `${baseUrl}oauth2/introspect`,
    revocation_endpoint: `${baseUrl}oauth2/revoke`,
    response_types_supported: [],
    grant_types_supported: ['client_credentials'],
    token_endpoint_auth_methods_supported: ['client_secret_basic', 'client_secret_post'],
  }
}
