/** Discovery for clients: RFC 8414, RFC 9728, SMART App Launch. Only what is served is named here. */

import { ID_TOKEN_ALGORITHMS } from '../../shared/access/credentials/clients.ts'
import { AREA_WORDS } from '../../shared/access/grant.ts'
import type { Config } from '../../shared/core/config/config.ts'
import type { Web } from '../http/context.ts'
import { GRANTS } from '../identity/oauth/token.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const SCOPES = ['openid', 'profile', 'email', 'phone', 'address', 'fhirUser', 'offline_access']
const SMART_SCOPES = [
  'openid',
  'fhirUser',
  'launch',
  'launch/patient',
  'offline_access',
  'online_access',
  'patient/*.rs',
  'user/*.cruds',
  'system/*.cruds',
  ...Object.values(AREA_WORDS),
]
const CAPABILITIES = [
  'launch-ehr',
  'launch-standalone',
  'authorize-post',
  'client-public',
  'client-confidential-symmetric',
  'client-confidential-asymmetric',
  'sso-openid-connect',
  'context-banner',
  'context-style',
  'context-ehr-patient',
  'context-ehr-encounter',
  'context-standalone-patient',
  'permission-offline',
  'permission-patient',
  'permission-user',
  'permission-v1',
  'permission-v2',
]
/** https://hl7.org/fhir/smart-app-launch/scopes-and-launch-context.html#styling */
const STYLES = {
  color_background: '#ffffff',
  color_error: '#b3261e',
  color_highlight: '#0b57d0',
  color_modal_backdrop: '',
  color_success: '#146c2e',
  color_text: '#1f1f1f',
  dim_border_radius: '6px',
  dim_font_size: '16px',
  dim_spacing_size: '16px',
  font_family_body: 'system-ui, sans-serif',
  font_family_heading: 'system-ui, sans-serif',
}

export function discoveryRoutes({ services }: Web): RouteFamily {
  const routes = createRoutes()
  const { config, tokens } = services
  const issuer = issuerMetadata(config)
  const metadata = {
    ...issuer,
    subject_types_supported: ['public'],
    id_token_signing_alg_values_supported: ID_TOKEN_ALGORITHMS,
    scopes_supported: SCOPES,
  }

  routes.get('/.well-known/jwks.json', 'public', (ctx) => {
    ctx.set('Cache-Control', 'public, max-age=300')
    ctx.remove('Pragma')
    ctx.body = { keys: tokens.keys.keys.map((key) => key.publicJwk) }
  })
  routes.get(
    ['/.well-known/openid-configuration', '/.well-known/oauth-authorization-server'],
    'public',
    (ctx) => {
      ctx.body = metadata
    },
  )
  routes.get(
    ['/.well-known/smart-configuration', '/fhir/R4/.well-known/smart-configuration'],
    'public',
    (ctx) => {
      ctx.body = {
        ...issuer,
        token_endpoint_auth_signing_alg_values_supported: ['RS384', 'ES384', 'RS256', 'ES256'],
        scopes_supported: SMART_SCOPES,
        capabilities: CAPABILITIES,
      }
    },
  )
  routes.get(
    ['/.well-known/smart-styles.json', '/fhir/R4/.well-known/smart-styles.json'],
    'public',
    (ctx) => {
      ctx.body = STYLES
    },
  )
  routes.get('/.well-known/oauth-protected-resource', 'public', (ctx) => {
    ctx.body = {
      resource: `${config.baseUrl}fhir/R4`,
      authorization_servers: [config.baseUrl],
      scopes_supported: SCOPES,
      bearer_methods_supported: ['header'],
    }
  })
  return routes
}

function issuerMetadata({ baseUrl }: Config) {
  return {
    issuer: baseUrl,
    authorization_endpoint: `${baseUrl}oauth2/authorize`,
    token_endpoint: `${baseUrl}oauth2/token`,
    userinfo_endpoint: `${baseUrl}oauth2/userinfo`,
    jwks_uri: `${baseUrl}.well-known/jwks.json`,
    introspection_endpoint: `${baseUrl}oauth2/introspect`,
    revocation_endpoint: `${baseUrl}oauth2/revoke`,
    end_session_endpoint: `${baseUrl}oauth2/logout`,
    registration_endpoint: `${baseUrl}oauth2/register`,
    response_types_supported: ['code'],
    grant_types_supported: [...GRANTS.keys()],
    token_endpoint_auth_methods_supported: [
      'client_secret_basic',
      'client_secret_post',
      'private_key_jwt',
    ],
    code_challenge_methods_supported: ['S256'],
    authorization_response_iss_parameter_supported: true,
  }
}
