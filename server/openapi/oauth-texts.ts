/** The words of `/oauth2/**` and of the documents that lead there, by method and path. */
import type { CallText, FieldTexts } from './call-text.ts'

const FORM_TOKEN: FieldTexts = {
  token: 'text!: The token',
  token_type_hint: 'text: access_token or refresh_token',
}

export const oauthTexts: Readonly<Record<string, CallText>> = {
  'POST /oauth2/token': {
    summary: 'Get tokens',
    description:
      'RFC 6749. A client without a form of its secret proves itself by `client_assertion` (RFC 7523).',
    body: {
      grant_type: 'text!: client_credentials, authorization_code, refresh_token or token-exchange',
      client_id: 'text: The client, or by Basic authentication',
      client_secret: 'text: Its secret',
      client_assertion_type: 'text: urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
      client_assertion: 'text: A JWT signed by a key of the client',
      code: 'text: For authorization_code',
      code_verifier: 'text: For PKCE',
      redirect_uri: 'text: As when the code was asked for',
      refresh_token: 'text: For refresh_token; each is good once',
      scope: 'text: What the token is to reach',
      subject_token: 'text: For an exchange',
      subject_token_type: 'text: urn:ietf:params:oauth:token-type:access_token',
    },
    example: { grant_type: 'client_credentials', client_id: 'an id', client_secret: 'a secret' },
    answer: 'Token',
  },
  'GET /oauth2/authorize': {
    summary: 'Begin a sign-in',
    description: 'Redirects to the page of the sign-in, or back to the app.',
    query: {
      response_type: 'text!: code',
      client_id: 'text!: The app',
      redirect_uri: 'text!: A registered address',
      scope: 'text!: openid, offline and SMART scopes',
      state: 'text: Comes back',
      nonce: 'text: Comes back in the ID token',
      code_challenge: 'text: PKCE',
      code_challenge_method: 'text: S256',
      aud: 'text: The FHIR base of this service',
      launch: 'text: Of an EHR launch',
      prompt: 'text: none, login',
    },
    status: 302,
  },
  'POST /oauth2/authorize': {
    summary: 'Begin a sign-in by a form',
    description: 'As GET.',
    body: {
      response_type: 'text!: code',
      client_id: 'text!: The app',
      redirect_uri: 'text!: A registered address',
      scope: 'text!: What is asked for',
    },
    status: 302,
  },
  'GET /oauth2/userinfo': { summary: 'Read the claims about the person', answer: 'object' },
  'POST /oauth2/userinfo': {
    summary: 'Read the claims about the person, as GET does',
    answer: 'object',
  },
  'POST /oauth2/introspect': {
    summary: 'Look at a token',
    description: 'RFC 7662.',
    body: FORM_TOKEN,
    answer: {
      active: 'flag!: False for what is no good token',
      scope: 'text: What it reaches',
      client_id: 'text: Whose it is',
      exp: 'whole: When it ends',
    },
  },
  'POST /oauth2/revoke': { summary: 'End a token', description: 'RFC 7009.', body: FORM_TOKEN },
  'GET /oauth2/logout': {
    summary: 'Sign out a browser',
    query: {
      id_token_hint: 'text: The ID token',
      post_logout_redirect_uri: 'text: A registered address',
      state: 'text: Comes back',
    },
    status: 302,
  },
  'POST /oauth2/logout': { summary: 'End the session of the token', answer: 'OperationOutcome' },
  'POST /oauth2/register': {
    summary: 'Register a public client',
    description: 'RFC 7591, for tools that come with an address of their own.',
    body: { redirect_uris: 'list!: Where codes go', client_name: 'text: What people call it' },
    answer: 'object',
    status: 201,
  },
  'GET /oauth': {
    summary: 'The page of a sign-in for an app',
    query: { client_id: 'text!: The app', redirect_uri: 'text!: Its address' },
    answer: 'text/html',
  },
  'GET /.well-known/jwks.json': {
    summary: 'The public keys of tokens',
    answer: { keys: 'list!: JSON Web Keys' },
  },
  'GET /.well-known/openid-configuration': {
    summary: 'Endpoints of OpenID Connect',
    answer: 'object',
  },
  'GET /.well-known/oauth-authorization-server': {
    summary: 'Endpoints of OAuth',
    description: 'RFC 8414.',
    answer: 'object',
  },
  'GET /.well-known/oauth-protected-resource': {
    summary: 'Who issues tokens for the FHIR API',
    description: 'RFC 9728.',
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
