/** `/admin/**`: projects, their members, clients and bots. */

import { handle } from '../../shared/api/handle.ts'
import { unsupportedMediaType } from '../../shared/core/errors.ts'
import { inviteMember, sessionUser } from '../../shared/projects/enrol.ts'
import { administeredProject } from '../../shared/projects/ownership.ts'
import { readQuery, wantsStrict } from '../../shared/request/negotiate.ts'
import { writeOptions } from '../../shared/request/reply.ts'
import type { WriteOptions } from '../../shared/store/rows/version.ts'
import { readJson, readJsonObject } from '../http/body.ts'
import { type Context, caller, requestIn, type Web, writer } from '../http/context.ts'
import { send, sendOk, sendVersion } from '../http/send.ts'
import { idempotentRequests } from '../middleware/once.ts'
import { inviteAgain, mailReset, readAccount, resetFactor } from '../projects/admin/accounts.ts'
import {
  type MemberPath,
  patchMember,
  readMember,
  removeMember,
  replaceMember,
} from '../projects/admin/members.ts'
import {
  addBot,
  addClient,
  botStats,
  createProject,
  readProject,
  replaceProjectList,
} from '../projects/admin/projects.ts'
import {
  pendingDeliveries,
  previewSchedule,
  schedules,
  storage,
  subscriptionStates,
} from '../projects/admin/work.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const MEMBER_ID = 'Errors: 404 for a member of another Project.'
const READ_VERSION = 'With `If-Match`, only if the Project has this version; otherwise 412.'
const TEXTS: RouteTexts = {
  'POST /Project': {
    summary: 'Create a project',
    description:
      'For super admins. The new project is strict, and has the features of DEFAULT_PROJECT_FEATURES.',
    body: 'Project',
    example: { resourceType: 'Project', name: 'Clinic' },
    answer: 'Project',
    status: 201,
  },
  'GET /projects/:id': {
    summary: 'Read a project',
    description: 'Includes secrets and settings for administrators.',
    answer: {
      project:
        'object: id, meta.versionId, name, secret, site, setting, systemSetting and features',
      load: 'object: Load units of this minute, where there is a quota: memberLimit, limit, used',
    },
  },
  'POST /projects/:id/client': {
    summary: 'Create a client',
    description: 'Creates a program account with a membership. The response includes the secret.',
    body: {
      name: 'text!: Display name',
      description: 'text: Purpose',
      redirectUris: 'list: Addresses that a code may be sent to',
      accessPolicy: 'object: Reference of an AccessPolicy; without one it may use all types',
      accessTokenLifetime: 'text: 30m, for example',
      refreshTokenLifetime: 'text: 2w, for example',
    },
    example: { name: 'Laboratory' },
    answer: 'ClientApplication',
    status: 201,
  },
  'POST /projects/:id/bot': {
    summary: 'Create a bot',
    description: 'Creates its membership and a template as its source. Deploy code with `$deploy`.',
    body: {
      name: 'text!: Display name',
      description: 'text: Purpose',
      timeout: 'whole: Seconds of a run',
      cronString: 'text: The schedule',
      accessPolicy: 'object: Reference of an AccessPolicy',
    },
    example: { name: 'admit' },
    answer: 'Bot',
    status: 201,
  },
  'GET /projects/:id/bots/stats': {
    summary: 'Read the load of bots',
    description: 'Running and waiting runs of all workers, with the reason for waiting.',
    answer: 'object',
  },
  'GET /projects/:id/schedules': {
    summary: 'List bot schedules',
    description: 'The next and the last run of each bot that has a schedule.',
    answer: { schedules: 'list: bot, cron, zone, next, last, lastStatus and isRunning' },
  },
  'POST /projects/:id/schedules/preview': {
    summary: 'Preview the runs of a schedule',
    description:
      'The next five runs by the cronString, the cronTiming and the time zone of a Bot, which need not be stored.',
    body: 'Bot',
    example: { resourceType: 'Bot', cronString: '0 6 * * 1' },
    answer: { cron: 'text', zone: 'text', overlaps: 'flag', next: 'list: instants' },
  },
  'GET /projects/:id/storage': {
    summary: 'Read storage usage',
    description:
      'Versions of records and their bytes, without indexes and contents of Binaries. Above 10,000 versions both are estimates.',
    answer: { versions: 'whole: With the history', bytes: 'whole: Bytes', isEstimate: 'flag' },
  },
  'GET /projects/:id/subscriptions': {
    summary: 'Read the delivery status of Subscriptions',
    description: 'One item per Subscription with deliveries; failing ones first.',
    answer: {
      subscriptions:
        'list: subscription, delivered, failed, waiting, retrying, failures in a row, failingSince, paused, error',
    },
  },
  'GET /projects/:id/subscriptions/:subscription': {
    summary: 'List undelivered notifications of a Subscription',
    description: 'Pending deliveries and failures of the last week, newest first, at most 200.',
    answer: {
      deliveries:
        'list: resource, version, interaction, target, state, attempts, added, due, error',
    },
  },
  'POST /projects/:id/invite': {
    summary: 'Invite a person or program',
    description: 'Creates the user, profile and membership, and mails a link to set a password.',
    body: {
      resourceType: 'text!: Patient, Practitioner or RelatedPerson',
      firstName: 'text!: Given name',
      lastName: 'text!: Family name',
      email: 'text: Required without externalId',
      externalId: 'text: The id at an identity provider',
      sendEmail: 'flag: Default true',
      admin: 'flag: The member is an administrator of the project',
      accessPolicy: 'object: Reference of an AccessPolicy',
      password: 'text: Sets a password instead of mailing a link; only for users of the project',
      membership: 'object: Further elements of the ProjectMembership',
      mfaRequired: 'flag: Requires a second factor',
      upsert: 'flag: Updates an existing membership instead of rejecting the invitation',
    },
    example: {
      resourceType: 'Practitioner',
      firstName: 'Grace',
      lastName: 'Hopper',
      email: 'grace@example.org',
    },
    answer: 'ProjectMembership',
  },
  'GET /projects/:id/members': { summary: 'List members', answer: 'Bundle' },
  'GET /projects/:id/members/:member': {
    summary: 'Read a member',
    description: MEMBER_ID,
    answer: 'ProjectMembership',
  },
  'POST /projects/:id/members/:member': {
    summary: 'Replace a member',
    description: `Sets \`admin\`, \`accessPolicy\`, \`access\` and the like. ${MEMBER_ID}`,
    body: 'ProjectMembership',
    answer: 'ProjectMembership',
  },
  'PUT /projects/:id/members/:member': {
    summary: 'Replace a member, as POST does',
    description: MEMBER_ID,
    body: 'ProjectMembership',
    answer: 'ProjectMembership',
  },
  'PATCH /projects/:id/members/:member': {
    summary: 'Change a member',
    description: `JSON Patch. ${MEMBER_ID}`,
    body: 'JsonPatch',
    example: [{ op: 'add', path: '/admin', value: true }],
    answer: 'ProjectMembership',
  },
  'DELETE /projects/:id/members/:member': {
    summary: 'Remove a member',
    description: `The person or program can no longer sign in to the project. ${MEMBER_ID}`,
    answer: 'OperationOutcome',
  },
  'GET /projects/:id/members/:member/account': {
    summary: 'Read the account of a member',
    description: `How far the invitation has got, and the last sign-in to this project. ${MEMBER_ID}`,
    answer: {
      email: 'text: Address of the account',
      scope: 'text: `project` for an account of this project only, otherwise `server`',
      state: 'text: `invited` or `accepted`',
      lastSignIn: 'text: Instant of the last sign-in to this project',
      mail: 'text: `waiting`, `kept` or `failed`; absent when it was sent or not requested',
      linkExpires: 'text: Instant at which the newest unused link expires',
    },
  },
  'POST /projects/:id/members/:member/invitation': {
    summary: 'Invite a member again',
    description: `Makes a link to set a password and mails it. The response has the link only for accounts of this project without a password. ${MEMBER_ID}`,
    body: { sendEmail: 'flag: True by default' },
    example: { sendEmail: true },
    answer: { link: 'text: Works once, for 7 days', isMailed: 'flag: A mail is in the outbox' },
  },
  'POST /projects/:id/members/:member/mfa/reset': {
    summary: 'Remove the second factor of a member',
    description: `For accounts of this project; super admins, for any. Ends the sessions of the account and mails its owner. ${MEMBER_ID}`,
    body: { method: 'text: totp' },
    example: {},
    answer: 'OperationOutcome',
  },
  'POST /projects/:id/members/:member/resetpassword': {
    summary: 'Mail a member a link to set another password',
    description: `At most 3 mails an hour for an account. ${MEMBER_ID}`,
    body: {},
    example: {},
    answer: 'OperationOutcome',
  },
  'POST /projects/:id/secrets': {
    summary: 'Replace the secrets of bots',
    description: `Replaces all secrets; bots read them from \`event.secrets\`. ${READ_VERSION}`,
    body: 'Settings',
    example: [{ name: 'PARTNER_KEY', valueString: 'a key' }],
    answer: 'Project',
  },
  'POST /projects/:id/settings': {
    summary: 'Replace the settings of a project',
    description: `Replaces all settings; see docs/projects.md. ${READ_VERSION}`,
    body: 'Settings',
    example: [{ name: 'BOT_INPUT_ARCHIVE', valueBoolean: true }],
    answer: 'Project',
  },
  'POST /projects/:id/sites': {
    summary: 'Replace the sites of a project',
    description: `Each site has a name, domains, and Google and reCAPTCHA keys. ${READ_VERSION}`,
    body: 'Settings',
    example: [{ name: 'Portal', domain: ['portal.example.org'] }],
    answer: 'Project',
  },
}

const READS = {
  '': readProject,
  '/bots/stats': botStats,
  '/schedules': schedules,
  '/storage': storage,
  '/subscriptions': subscriptionStates,
}
const LISTS = [
  ['secrets', 'secret'],
  ['settings', 'setting'],
  ['sites', 'site'],
] as const

export function adminRoutes(web: Web): RouteFamily {
  const { services } = web
  const routes = createRoutes({ prefix: '/admin', texts: TEXTS, inside: [idempotentRequests(web)] })
  const { baseUrl } = services.config

  routes.post('/Project', 'super-administrator', async (ctx) => {
    const body = await readJsonObject(ctx)
    const written = await createProject(services, writer(ctx).principal, body)
    sendVersion(ctx, 201, written, baseUrl)
  })
  for (const [end, read] of Object.entries(READS)) {
    routes.get(`/projects/:id${end}`, 'administrator', async (ctx) => {
      ctx.body = await read(services, caller(ctx).principal, ctx.params.id ?? '')
    })
  }
  for (const [end, add] of Object.entries({ client: addClient, bot: addBot })) {
    routes.post(`/projects/:id/${end}`, 'administrator', async (ctx) => {
      const body = await readJsonObject(ctx)
      const added = await add(services, writer(ctx).principal, ctx.params.id ?? '', body)
      sendVersion(ctx, 201, added, baseUrl)
    })
  }
  routes.post('/projects/:id/schedules/preview', 'administrator', async (ctx) => {
    const bot = await readJsonObject(ctx)
    const { principal } = caller(ctx)
    ctx.body = await previewSchedule(services, principal, ctx.params.id ?? '', bot)
  })
  routes.get('/projects/:id/subscriptions/:subscription', 'administrator', async (ctx) => {
    const { id: projectId = '', subscription: id = '' } = ctx.params
    const { principal } = caller(ctx)
    ctx.body = await pendingDeliveries(services, principal, { projectId, id })
  })
  for (const [path, list] of LISTS) {
    routes.post(`/projects/:id/${path}`, 'administrator', async (ctx) => {
      const body = await readJson(ctx)
      const { principal } = writer(ctx)
      const options = ifMatchOptions(ctx)
      const replacement = { projectId: ctx.params.id ?? '', list, body, options }
      const written = await replaceProjectList(services, principal, replacement)
      sendVersion(ctx, 200, written, baseUrl)
    })
  }
  memberRoutes(routes, web)
  accountRoutes(routes, web)
  return routes
}

// `/admin/projects/:id/invite` and `/admin/projects/:id/members/**`.

const MEMBERS = '/projects/:id/members'
const MEMBER = `${MEMBERS}/:member`

function memberRoutes(routes: RouteFamily, { services }: Web): void {
  const { baseUrl } = services.config

  routes.post('/projects/:id/invite', 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx)
    const { principal, session } = writer(ctx)
    const id = ctx.params.id ?? ''
    const { headers } = ctx.req
    const { membership } = await inviteMember(services, principal, {
      user: sessionUser(session),
      projectId: id,
      body,
      isStrict: wantsStrict(typeof headers.prefer === 'string' ? headers.prefer : undefined),
    })
    sendVersion(ctx, 200, membership, baseUrl)
  })
  routes.get(MEMBERS, 'administrator', async (ctx) => {
    const { principal } = caller(ctx)
    const project = await administeredProject(services.principals, principal, ctx.params.id ?? '')
    const query = readQuery(ctx.querystring)
    query.append('project', `Project/${project.id}`)
    const request = {
      ...requestIn(ctx, 'ProjectMembership', undefined),
      query,
      queryText: undefined,
    }
    await send(ctx, await handle(services, principal, request))
  })
  routes.get(MEMBER, 'administrator', async (ctx) => {
    const found = await readMember(services, caller(ctx).principal, readMemberPath(ctx))
    sendVersion(ctx, 200, found, baseUrl)
  })
  for (const method of ['post', 'put'] as const) {
    routes[method](MEMBER, 'administrator', async (ctx) => {
      const body = await readJsonObject(ctx)
      const { principal } = writer(ctx)
      const written = await replaceMember(services, principal, readMemberPath(ctx), {
        body,
        options: ifMatchOptions(ctx),
      })
      sendVersion(ctx, 200, written, baseUrl)
    })
  }
  routes.patch(MEMBER, 'administrator', async (ctx) => {
    if (!/^application\/json-patch\+json\s*(;|$)/i.test(ctx.get('Content-Type'))) {
      throw unsupportedMediaType()
    }
    const body = await readJson(ctx)
    const { principal } = writer(ctx)
    const written = await patchMember(services, principal, readMemberPath(ctx), {
      body,
      options: ifMatchOptions(ctx),
    })
    sendVersion(ctx, 200, written, baseUrl)
  })
  routes.delete(MEMBER, 'administrator', async (ctx) => {
    await removeMember(services, writer(ctx).principal, readMemberPath(ctx), ifMatchOptions(ctx))
    sendOk(ctx)
  })
}

/** The state of a member's account, and another invitation. */
function accountRoutes(routes: RouteFamily, { services }: Web): void {
  routes.get(`${MEMBER}/account`, 'administrator', async (ctx) => {
    ctx.body = await readAccount(services, caller(ctx).principal, readMemberPath(ctx))
  })
  routes.post(`${MEMBER}/invitation`, 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx)
    const { principal } = writer(ctx)
    ctx.body = await inviteAgain(services, principal, readMemberPath(ctx), body)
  })
  for (const [end, act] of Object.entries({ 'mfa/reset': resetFactor, resetpassword: mailReset })) {
    routes.post(`${MEMBER}/${end}`, 'administrator', async (ctx) => {
      const body = await readJsonObject(ctx)
      await act(services, writer(ctx).principal, readMemberPath(ctx), body)
      sendOk(ctx)
    })
  }
}

function readMemberPath(ctx: Context & { params: Record<string, string> }): MemberPath {
  return { projectId: ctx.params.id ?? '', id: ctx.params.member ?? '' }
}

function ifMatchOptions(ctx: Context): WriteOptions {
  return writeOptions({ headers: { 'if-match': ctx.get('If-Match') || undefined } })
}
