/** `/auth/**`: sign-in steps and registration. */

import { alwaysProves, readSignInForm } from '../../shared/access/credentials/clients.ts'
import { grantedScope } from '../../shared/access/scopes.ts'
import { badRequest, notFound } from '../../shared/core/errors.ts'
import type { CallText, FieldTexts } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Context, Web } from '../http/context.ts'
import { sendOk } from '../http/send.ts'
import { findClient } from '../identity/auth/apps.ts'
import { denyLogin, describeConsent } from '../identity/auth/consent.ts'
import { findMethod, finishExternal } from '../identity/auth/external.ts'
import { readFields, type SignInFields } from '../identity/auth/fields.ts'
import {
  chooseProfile,
  chooseScope,
  loginResult,
  openLogin,
  resumeLogin,
} from '../identity/auth/login-steps.ts'
import { enrollAtLogin, sendCode, verifyAtLogin } from '../identity/auth/mfa.ts'
import { logIn } from '../identity/auth/password-login.ts'
import { requestReset, usePasswordLink, verifyEmail } from '../identity/auth/passwords.ts'
import { choosePatient, listPatients } from '../identity/auth/patient-choice.ts'
import { logInByGoogle } from '../identity/auth/provider.ts'
import { registerPatient, registerProject, registerUser } from '../identity/auth/register.ts'
import { createClientKeys } from '../identity/clients/assertions.ts'
import { readClientCertificate } from '../identity/clients/clients.ts'
import { exchangeProviderToken } from '../identity/oauth/token.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const LOGIN_STEP: FieldTexts = {
  login: 'text: Id of the sign-in, for the next step',
  code: 'text: The code, after the last step; exchange it at /oauth2/token',
  memberships: 'list: What the person may choose from, by /auth/profile',
  mfaRequired: 'flag: Continue with /auth/mfa/verify',
  mfaMethods: 'list: totp, or email: get a code by /auth/mfa/send-email first',
}
const SIGN_IN: FieldTexts = {
  clientId: 'text: The app that gets the code',
  projectId: 'text: The Project to sign in to',
  scope: 'text: Requested scope',
  redirectUri: 'text: A registered address of the app',
  nonce: 'text: Returned in the ID token',
  codeChallenge: 'text: PKCE, RFC 7636',
  codeChallengeMethod: 'text: S256',
}
const PERSON: FieldTexts = {
  firstName: 'text!: Given name',
  lastName: 'text!: Family name',
  email: 'text!: Address of the person',
  password: 'text!: At least 8 characters, not a common password',
}
/** A step of a sign-in that has begun. */
function step(summary: string, body: FieldTexts): CallText {
  return { summary, body: { login: 'text!: Id of the sign-in', ...body }, answer: LOGIN_STEP }
}

const TEXTS: RouteTexts = {
  'POST /method': {
    summary: 'Find the sign-in method of a person',
    body: { email: 'text!: Address of the person' },
    answer: 'object',
  },
  'POST /login': {
    summary: 'Sign in by e-mail and password',
    description: 'Returns the next step, or a code. Too many wrong passwords return 429.',
    body: { email: 'text!: Address of the person', password: 'text!: The password', ...SIGN_IN },
    example: {
      email: 'grace@example.org',
      password: 'a long password',
      codeChallenge: 'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM',
      codeChallengeMethod: 'S256',
    },
    answer: LOGIN_STEP,
  },
  'GET /login/:login': {
    summary: 'Continue a sign-in',
    description: 'Only for the browser that began it.',
    answer: LOGIN_STEP,
  },
  'GET /login/:login/consent': { summary: 'Read the scopes requested by an app', answer: 'object' },
  'GET /login/:login/patients': {
    summary: 'List patients for an app',
    description: 'The patients visible to the person, for a standalone launch with launch/patient.',
    query: { name: 'text: The beginning of a name', cursor: 'text: Of the next page' },
    answer: 'object',
  },
  'POST /patient': step('Choose the patient of an app', { patient: 'text!: Id of the patient' }),
  'POST /deny': {
    summary: 'Deny the scopes requested by an app',
    body: { login: 'text!: Id of the sign-in' },
    answer: 'OperationOutcome',
  },
  'POST /profile': step('Choose a membership', { profile: 'text!: Id of the ProjectMembership' }),
  'POST /scope': step('Grant scopes to an app', { scope: 'text!: Granted scopes' }),
  'POST /mfa/login-enroll': step('Set up a second factor during sign-in', {
    token: 'text!: The code of the app',
  }),
  'POST /mfa/verify': step('Verify a second factor', {
    token: 'text!: The code of the app or of the mail',
  }),
  'POST /mfa/send-email': {
    summary: 'Mail a code as the second factor',
    description:
      'Where the project permits it, for people without an authenticator app. The code is valid for ten minutes and replaces the previous one; at most 5 an hour.',
    body: { login: 'text!: Id of the sign-in' },
    answer: 'OperationOutcome',
  },
  'GET /clientinfo/:clientId': {
    summary: 'Read the welcome text of an app',
    answer: { welcomeString: 'text: Its greeting', logo: 'object: Its picture' },
  },
  'POST /google': {
    summary: 'Sign in by Google',
    body: {
      googleClientId: 'text!: The client at Google',
      googleCredential: 'text!: The ID token',
      createUser: 'flag: Register unknown users',
      ...SIGN_IN,
    },
    answer: LOGIN_STEP,
  },
  'GET /external': {
    summary: 'Return from an identity provider',
    description: 'Redirects to the app.',
    query: { code: 'text: Of the provider', state: 'text: As it was sent' },
    status: 302,
  },
  'POST /exchange': {
    summary: 'Sign in by a token of an identity provider',
    body: {
      externalAccessToken: 'text!: The token',
      clientId: 'text!: A client with that provider',
    },
    answer: 'Token',
  },
  'POST /newuser': {
    summary: 'Register',
    description: 'Requires REGISTER_ENABLED or a project with open registration.',
    body: { ...PERSON, ...SIGN_IN, recaptchaToken: 'text: Where reCAPTCHA is on' },
    answer: LOGIN_STEP,
  },
  'POST /newproject': step('Create a project during registration', {
    projectName: 'text!: 4 to 72 characters',
  }),
  'POST /newpatient': step('Become a patient during registration', {
    projectId: 'text!: A project with open registration',
  }),
  'POST /resetpassword': {
    summary: 'Request a password reset link',
    description: 'The response is the same for unknown addresses.',
    body: {
      email: 'text!: Address of the person',
      sendEmail: 'flag: Default true',
      projectId: 'text: Of a person of a project',
    },
    answer: 'OperationOutcome',
  },
  'POST /setpassword': {
    summary: 'Set a password by a link',
    body: {
      id: 'text!: Of the link',
      secret: 'text!: Of the link',
      password: 'text!: The new password',
    },
    answer: 'OperationOutcome',
  },
  'POST /verifyemail': {
    summary: 'Verify an address by a link',
    body: { id: 'text!: Of the link', secret: 'text!: Of the link' },
    answer: 'OperationOutcome',
  },
}

type Act<T> = (services: Services, ctx: Context, fields: SignInFields) => Promise<T>

/** Answered with the next step. */
const STEPS: Readonly<Record<string, Act<object>>> = {
  '/method': findMethod,
  '/login': logIn,
  '/patient': choosePatient,
  '/profile': chooseProfile,
  '/scope': chooseScope,
  '/newuser': registerUser,
  '/newproject': registerProject,
  '/newpatient': registerPatient,
}
/** Answered with an OperationOutcome. */
const ACTS: Readonly<Record<string, Act<void>>> = {
  '/deny': denyLogin,
  '/mfa/send-email': async (services, ctx, fields) =>
    await sendCode(services, await openLogin(services, ctx, fields)),
  '/resetpassword': (services, _, fields) => requestReset(services, fields),
  '/setpassword': usePasswordLink,
  '/verifyemail': (services, _, fields) => verifyEmail(services, fields),
}
const READS = {
  '/login/:login': resumeLogin,
  '/login/:login/consent': describeConsent,
  '/login/:login/patients': listPatients,
}

export function authRoutes(web: Web): RouteFamily {
  const { services } = web
  const routes = createRoutes({ prefix: '/auth', texts: TEXTS })
  for (const [path, act] of Object.entries(STEPS)) {
    routes.post(path, 'public', async (ctx) => {
      ctx.body = await act(services, ctx, await readFields(ctx))
    })
  }
  for (const [path, act] of Object.entries(ACTS)) {
    routes.post(path, 'public', async (ctx) => {
      await act(services, ctx, await readFields(ctx))
      sendOk(ctx)
    })
  }
  for (const [path, read] of Object.entries(READS)) {
    routes.get(path, 'public', async (ctx) => {
      ctx.body = await read(services, ctx, ctx.params.login ?? '')
    })
  }
  for (const [path, pass] of [
    ['/mfa/login-enroll', enrollAtLogin],
    ['/mfa/verify', verifyAtLogin],
  ] as const) {
    routes.post(path, 'public', async (ctx) => {
      const fields = await readFields(ctx)
      const token = fields.required('token', 'Token')
      const login = await openLogin(services, ctx, fields)
      ctx.body = await loginResult(services, ctx, await pass(services, ctx, login, token))
    })
  }
  addProviders(routes, web)
  return routes
}

function addProviders(routes: RouteFamily, { services }: Web): void {
  const keys = createClientKeys(services)
  routes.get('/clientinfo/:clientId', 'public', async (ctx) => {
    const client = await findClient(services, ctx.params.clientId ?? '')
    if (client === undefined) throw notFound()
    ctx.body = readSignInForm(client)
  })
  routes.post('/google', 'public', async (ctx) => {
    ctx.body = await logInByGoogle(services, ctx, keys, await readFields(ctx))
  })
  routes.get('/external', 'public', async (ctx) => {
    ctx.redirect(await finishExternal(services, ctx))
  })
  routes.post('/exchange', 'public', async (ctx) => {
    const fields = await readFields(ctx)
    const token = fields.required('externalAccessToken', 'External access token', 1, 16_384)
    const clientId = fields.required('clientId', 'Client')
    fields.check()
    const client = await findClient(services, clientId)
    if (client === undefined) throw badRequest('Client not found', 'clientId')
    if (alwaysProves(client)) {
      throw badRequest('This client must authenticate at /oauth2/token', 'clientId')
    }
    const scope = grantedScope('openid offline')
    const certificate = readClientCertificate(services, ctx)
    const exchange = { client, token, scope, certificate }
    ctx.body = await exchangeProviderToken(services, ctx, exchange)
  })
}
