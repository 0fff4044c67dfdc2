/** The words of `/auth/**`, by method and path. */
import type { CallText, FieldTexts } from './call-text.ts'

const LOGIN_STEP: FieldTexts = {
  login: 'text: Id of the sign-in, for the next step',
  code: 'text: The code, when nothing else is needed; it is exchanged at /oauth2/token',
  memberships: 'list: What the person may choose from, by /auth/profile',
  mfaRequired: 'flag: A second factor is asked for by /auth/mfa/verify',
}
const SIGN_IN: FieldTexts = {
  clientId: 'text: The app that gets the code',
  projectId: 'text: The Project to sign in to',
  scope: 'text: What the token is to reach',
  redirectUri: 'text: A registered address of the app',
  nonce: 'text: Comes back in the ID token',
  codeChallenge: 'text: PKCE, RFC 7636',
  codeChallengeMethod: 'text: S256',
}
const PERSON: FieldTexts = {
  firstName: 'text!: Given name',
  lastName: 'text!: Family name',
  email: 'text!: Address of the person',
  password: 'text!: At least 8 characters, and none of the common ones',
}
export const authTexts: Readonly<Record<string, CallText>> = {
  'POST /auth/method': {
    summary: 'Ask how a person signs in',
    body: { email: 'text!: Address of the person' },
    answer: 'object',
  },
  'POST /auth/login': {
    summary: 'Sign in by e-mail and password',
    description: 'Answers the next step, or a code. Wrong guesses are counted: 429 after some.',
    body: { email: 'text!: Address of the person', password: 'text!: The password', ...SIGN_IN },
    example: {
      email: 'grace@example.org',
      password: 'a long password',
      codeChallenge: 'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM',
      codeChallengeMethod: 'S256',
    },
    answer: LOGIN_STEP,
  },
  'GET /auth/login/{login}': {
    summary: 'Go on with a sign-in',
    description: 'For the browser that began it.',
    answer: LOGIN_STEP,
  },
  'GET /auth/login/{login}/consent': { summary: 'See what an app asks for', answer: 'object' },
  'GET /auth/login/{login}/patients': {
    summary: 'List patients for an app',
    description: 'Those that the person may see, where an app asks for launch/patient by itself.',
    query: { name: 'text: The beginning of a name', cursor: 'text: Of the next page' },
    answer: 'object',
  },
  'POST /auth/patient': {
    summary: 'Choose the patient of an app',
    body: { login: 'text!: Id of the sign-in', patient: 'text!: Id of the patient' },
    answer: LOGIN_STEP,
  },
  'POST /auth/deny': {
    summary: 'Refuse what an app asks for',
    body: { login: 'text!: Id of the sign-in' },
    answer: 'OperationOutcome',
  },
  'POST /auth/profile': {
    summary: 'Choose a membership',
    body: { login: 'text!: Id of the sign-in', profile: 'text!: Id of the ProjectMembership' },
    answer: LOGIN_STEP,
  },
  'POST /auth/scope': {
    summary: 'Allow what an app asks for',
    body: { login: 'text!: Id of the sign-in', scope: 'text!: What is allowed' },
    answer: LOGIN_STEP,
  },
  'POST /auth/mfa/login-enroll': {
    summary: 'Set up a second factor while signing in',
    body: { login: 'text!: Id of the sign-in', token: 'text!: The code of the app' },
    answer: LOGIN_STEP,
  },
  'POST /auth/mfa/verify': {
    summary: 'Show a second factor',
    body: { login: 'text!: Id of the sign-in', token: 'text!: The code of the app' },
    answer: LOGIN_STEP,
  },
  'GET /auth/mfa/status': {
    summary: 'See whether one has a second factor',
    description: 'With a QR code to set one up.',
    answer: {
      enrolled: 'flag: True once it is set up',
      enrollUri: 'text: For the app',
      enrollQrCode: 'text: A picture as a data address',
    },
  },
  'POST /auth/mfa/enroll': {
    summary: 'Set up a second factor',
    body: { token: 'text!: The code of the app' },
    answer: 'OperationOutcome',
  },
  'POST /auth/mfa/disable': {
    summary: 'Give up the second factor',
    body: { token: 'text!: The code of the app' },
    answer: 'OperationOutcome',
  },
  'GET /auth/clientinfo/{clientId}': {
    summary: 'See how an app greets',
    answer: { welcomeString: 'text: Its greeting', logo: 'object: Its picture' },
  },
  'POST /auth/google': {
    summary: 'Sign in by Google',
    body: {
      googleClientId: 'text!: The client at Google',
      googleCredential: 'text!: The ID token',
      createUser: 'flag: Register who is not known',
      ...SIGN_IN,
    },
    answer: LOGIN_STEP,
  },
  'GET /auth/external': {
    summary: 'Come back from an identity provider',
    description: 'Redirects to the app.',
    query: { code: 'text: Of the provider', state: 'text: As it was sent' },
    status: 302,
  },
  'POST /auth/exchange': {
    summary: 'Sign in by a token of an identity provider',
    body: {
      externalAccessToken: 'text!: The token',
      clientId: 'text!: A client with that provider',
    },
    answer: 'Token',
  },
  'POST /auth/newuser': {
    summary: 'Register',
    description: 'Where REGISTER_ENABLED or the project allows it.',
    body: { ...PERSON, ...SIGN_IN, recaptchaToken: 'text: Where reCAPTCHA is on' },
    answer: LOGIN_STEP,
  },
  'POST /auth/newproject': {
    summary: 'Make a project while registering',
    body: { login: 'text!: Id of the sign-in', projectName: 'text!: 4 to 72 characters' },
    answer: LOGIN_STEP,
  },
  'POST /auth/newpatient': {
    summary: 'Become a patient while registering',
    body: {
      login: 'text!: Id of the sign-in',
      projectId: 'text!: A project with open registration',
    },
    answer: LOGIN_STEP,
  },
  'POST /auth/resetpassword': {
    summary: 'Ask for a link to set a new password',
    description: 'Answers the same whether or not the address is known.',
    body: {
      email: 'text!: Address of the person',
      sendEmail: 'flag: True unless said otherwise',
      projectId: 'text: Of a person of a project',
    },
    answer: 'OperationOutcome',
  },
  'POST /auth/setpassword': {
    summary: 'Set a password by a link',
    body: {
      id: 'text!: Of the link',
      secret: 'text!: Of the link',
      password: 'text!: The new password',
    },
    answer: 'OperationOutcome',
  },
  'POST /auth/verifyemail': {
    summary: 'Prove an address by a link',
    body: { id: 'text!: Of the link', secret: 'text!: Of the link' },
    answer: 'OperationOutcome',
  },
  'POST /auth/changepassword': {
    summary: 'Change one’s own password',
    body: { oldPassword: 'text!: The present one', newPassword: 'text!: The new one' },
    answer: 'OperationOutcome',
  },
  'GET /auth/me': {
    summary: 'See who is signed in',
    description: 'The user, membership, project, profile and sessions, and the access policy.',
    answer: 'object',
  },
  'POST /auth/revoke': {
    summary: 'End a session',
    body: { loginId: 'text!: Id of the Login' },
    answer: 'OperationOutcome',
  },
}

// The words of `/oauth2/**` and of the documents that lead there, by method and path.

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
