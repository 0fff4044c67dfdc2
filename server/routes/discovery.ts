/** Discovery documents of the implemented features: RFC 8414, RFC 9728, SMART App Launch. */

import { BY_CA, BY_THUMBPRINT } from '../../shared/access/credentials/certificates.ts'
import { ID_TOKEN_ALGORITHMS } from '../../shared/access/credentials/clients.ts'
import { issuerUrl } from '../../shared/access/credentials/tokens.ts'
import { AREA_WORDS } from '../../shared/access/grant.ts'
import type { Config } from '../../shared/core/config/config.ts'
import type { Context, Web } from '../http/context.ts'
import { ASSERTION_ALGORITHMS } from '../identity/clients/assertions.ts'
import { GRANTS } from '../identity/oauth/token.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const TEXTS: RouteTexts = {
  'GET /.well-known/jwks.json': {
    summary: 'The public keys of tokens',
    answer: { keys: 'list!: JSON Web Keys' },
  },
  'GET /.well-known/openid-configuration': {
    summary: 'Endpoints of OpenID Connect',
    description: 'Of a Project also with `/projects/{id}` at the end.',
    answer: 'object',
  },
  'GET /.well-known/oauth-authorization-server': {
    summary: 'Endpoints of OAuth',
    description: 'RFC 8414. Of a Project also with `/projects/{id}` at the end.',
    answer: 'object',
  },
  'GET /.well-known/oauth-protected-resource': {
    summary: 'Metadata of the protected FHIR API',
    description: 'RFC 9728.',
    answer: 'object',
  },
  'GET /.well-known/oauth-protected-resource/fhir/R4': {
    summary: 'Metadata of the protected FHIR API, at the path of RFC 9728',
    description: 'Of a Project: `/.well-known/oauth-protected-resource/projects/{id}/fhir/R4`.',
    answer: 'object',
  },
  'GET /.well-known/oauth-protected-resource/mcp': {
    summary: 'Metadata of the tools for language models',
    description:
      'RFC 9728. Of a Project: `/.well-known/oauth-protected-resource/projects/{id}/mcp`.',
    answer: 'object',
  },
  'GET /.well-known/smart-configuration': {
    summary: 'Endpoints and abilities of SMART',
    answer: 'object',
  },
  'GET /.well-known/smart-styles.json': { summary: 'Colours for SMART apps', answer: 'object' },
  'GET /fhir/R4/.well-known/smart-configuration': {
    summary: 'Endpoints and abilities of SMART, below the FHIR base',
    answer: 'object',
  },
  'GET /fhir/R4/.well-known/smart-styles.json': {
    summary: 'Colours for SMART apps, below the FHIR base',
    answer: 'object',
  },
}

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
const TOOL_SCOPES = ['openid', 'offline_access', 'patient/*.rs', 'user/*.rs', 'user/*.cruds']
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
  const routes = createRoutes({ texts: TEXTS })
  const { config, tokens } = services
  const issuer = (ctx: Context) => issuerUrl(config.baseUrl, ctx.state.projectScope)

  routes.get('/.well-known/jwks.json', 'public', (ctx) => {
    ctx.set('Cache-Control', 'public, max-age=300')
    ctx.remove('Pragma')
    ctx.body = { keys: tokens.keys.keys.map((key) => key.publicJwk) }
  })
  routes.get(
    ['/.well-known/openid-configuration', '/.well-known/oauth-authorization-server'],
    'public',
    (ctx) => {
      ctx.body = {
        ...issuerMetadata(issuer(ctx), config),
        subject_types_supported: ['public'],
        id_token_signing_alg_values_supported: ID_TOKEN_ALGORITHMS,
        scopes_supported: SCOPES,
      }
    },
  )
  routes.get(
    ['/.well-known/smart-configuration', '/fhir/R4/.well-known/smart-configuration'],
    'public',
    (ctx) => {
      ctx.body = {
        ...issuerMetadata(issuer(ctx), config),
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
  const resources = [
    { path: '', resource: 'fhir/R4', scopes: SCOPES },
    { path: '/fhir/R4', resource: 'fhir/R4', scopes: SCOPES },
    { path: '/mcp', resource: 'mcp', scopes: TOOL_SCOPES },
  ]
  for (const { path, resource, scopes } of resources) {
    routes.get(`/.well-known/oauth-protected-resource${path}`, 'public', (ctx) => {
      ctx.body = {
        resource: `${issuer(ctx)}${resource}`,
        authorization_servers: [issuer(ctx)],
        scopes_supported: scopes,
        bearer_methods_supported: ['header'],
        ...boundTokens(config),
      }
    })
  }
  return routes
}

/** RFC 8705 §3.3 and, for resources, RFC 9728 §2. */
function boundTokens({ clientCertificateHeader: header }: Config) {
  return header === undefined ? {} : { tls_client_certificate_bound_access_tokens: true }
}

function issuerMetadata(issuer: string, config: Config) {
  const isMutual = config.clientCertificateHeader !== undefined
  return {
    issuer,
    authorization_endpoint: `${issuer}oauth2/authorize`,
    token_endpoint: `${issuer}oauth2/token`,
    userinfo_endpoint: `${issuer}oauth2/userinfo`,
    jwks_uri: `${issuer}.well-known/jwks.json`,
    introspection_endpoint: `${issuer}oauth2/introspect`,
    revocation_endpoint: `${issuer}oauth2/revoke`,
    end_session_endpoint: `${issuer}oauth2/logout`,
    registration_endpoint: `${issuer}oauth2/register`,
    response_types_supported: ['code'],
    grant_types_supported: [...GRANTS.keys()],
    token_endpoint_auth_methods_supported: [
      'client_secret_basic',
      'client_secret_post',
      'private_key_jwt',
      'none',
      ...(isMutual ? [BY_THUMBPRINT] : []),
      ...(isMutual && config.clientCertificateVerified ? [BY_CA] : []),
    ],
    token_endpoint_auth_signing_alg_values_supported: ASSERTION_ALGORITHMS,
    ...boundTokens(config),
    code_challenge_methods_supported: ['S256'],
    authorization_response_iss_parameter_supported: true,
  }
}
