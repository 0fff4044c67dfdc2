/** `/admin/**`: projects and what belongs to them, and `/admin/super/**` with the passwords that administrators set. */

import type { Principal } from '../../shared/access/principal.ts'
import { handle } from '../../shared/api/handle.ts'
import { listScheduledBots, readSchedule } from '../../shared/bots/schedules.ts'
import { allOk, notSupported, unsupportedMediaType } from '../../shared/core/errors.ts'
import { typeName } from '../../shared/fhir/definitions.ts'
import { inviteMember, sessionUser } from '../../shared/projects/enrol.ts'
import { administeredProject } from '../../shared/projects/ownership.ts'
import { readQuery, wantsStrict } from '../../shared/request/negotiate.ts'
import { FHIR_JSON, writeOptions } from '../../shared/request/reply.ts'
import type { FhirReply } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import { estimateStorage } from '../../shared/store/read/storage.ts'
import type { WriteOptions } from '../../shared/store/rows/version.ts'
import { findPendingDeliveries } from '../../shared/subscriptions/pending-deliveries.ts'
import { listSubscriptionStates } from '../../shared/subscriptions/state.ts'
import { readBody, readJson, readJsonObject } from '../http/body.ts'
import { type Context, caller, type Web, writer } from '../http/context.ts'
import { send, sendVersion } from '../http/send.ts'
import { audit } from '../identity/login-store.ts'
import { idempotentRequests } from '../middleware/once.ts'
import {
  type MemberPath,
  patchMember,
  readMember,
  removeMember,
  replaceMember,
  setAnyPassword,
  setProjectPassword,
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
  acceptCompletedJob,
  migrations,
  outboxMails,
  purge,
  queueStatus,
  reloadCron,
  removeBotSchedule,
  requireAsync,
  requireSuperAdmin,
  type SuperCall,
  startReindex,
  workerStatus,
} from '../projects/admin/super.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const LISTS = [
  ['secrets', 'secret'],
  ['settings', 'setting'],
  ['sites', 'site'],
] as const

export function adminRoutes(web: Web): RouteFamily {
  const { services } = web
  const routes = createRoutes({ prefix: '/admin', inside: [idempotentRequests(web)] })
  const { baseUrl, maxBodyBytes } = services.config

  routes.post('/Project', 'super-administrator', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    const written = await createProject(services, writer(ctx).principal, body)
    sendVersion(ctx, 201, written, baseUrl)
  })
  routes.get('/projects/:id', 'administrator', async (ctx) => {
    ctx.body = await readProject(services, caller(ctx).principal, ctx.params.id ?? '')
  })
  routes.post('/projects/:id/client', 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    const client = await addClient(services, writer(ctx).principal, ctx.params.id ?? '', body)
    sendVersion(ctx, 201, client, baseUrl)
  })
  routes.post('/projects/:id/bot', 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    const bot = await addBot(services, writer(ctx).principal, ctx.params.id ?? '', body)
    sendVersion(ctx, 201, bot, baseUrl)
  })
  routes.get('/projects/:id/bots/stats', 'administrator', async (ctx) => {
    ctx.body = await botStats(services, caller(ctx).principal, ctx.params.id ?? '')
  })
  routes.get('/projects/:id/schedules', 'administrator', async (ctx) => {
    ctx.body = await schedules(services, caller(ctx).principal, ctx.params.id ?? '')
  })
  routes.get('/projects/:id/storage', 'administrator', async (ctx) => {
    ctx.body = await storage(services, caller(ctx).principal, ctx.params.id ?? '')
  })
  routes.get('/projects/:id/subscriptions', 'administrator', async (ctx) => {
    ctx.body = await subscriptionStates(services, caller(ctx).principal, ctx.params.id ?? '')
  })
  routes.get('/projects/:id/subscriptions/:subscription', 'administrator', async (ctx) => {
    const { id: projectId = '', subscription: id = '' } = ctx.params
    const { principal } = caller(ctx)
    ctx.body = await pendingDeliveries(services, principal, { projectId, id })
  })
  for (const [path, list] of LISTS) {
    routes.post(`/projects/:id/${path}`, 'administrator', async (ctx) => {
      const body = await readJson(ctx, maxBodyBytes)
      const { principal } = writer(ctx)
      const id = ctx.params.id ?? ''
      const written = await replaceProjectList(services, principal, { projectId: id, list, body })
      sendVersion(ctx, 200, written, baseUrl)
    })
  }
  memberRoutes(routes, web)
  superRoutes(routes, web)
  return routes
}

// `/admin/projects/:id/invite` and `/admin/projects/:id/members/**`.

const MEMBERS = '/projects/:id/members'
const MEMBER = `${MEMBERS}/:member`

/** Adds its routes to those of `/admin`. */
function memberRoutes(routes: RouteFamily, { services }: Web): void {
  const { baseUrl, maxBodyBytes } = services.config

  routes.post('/projects/:id/invite', 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
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
    const { requestId, traceId } = ctx.state
    const headers = ctx.req.headers as Record<string, string | undefined>
    const request = { method: 'GET', path: 'ProjectMembership', query, headers, body: undefined }
    await send(ctx, await handle(services, principal, { ...request, requestId, traceId }))
  })
  routes.get(MEMBER, 'administrator', async (ctx) => {
    const found = await readMember(services, caller(ctx).principal, readMemberPath(ctx))
    sendVersion(ctx, 200, found, baseUrl)
  })
  for (const method of ['post', 'put'] as const) {
    routes[method](MEMBER, 'administrator', async (ctx) => {
      const body = await readJsonObject(ctx, maxBodyBytes)
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
    const body = await readJson(ctx, maxBodyBytes)
    const { principal } = writer(ctx)
    const written = await patchMember(services, principal, readMemberPath(ctx), {
      body,
      options: ifMatchOptions(ctx),
    })
    sendVersion(ctx, 200, written, baseUrl)
  })
  routes.delete(MEMBER, 'administrator', async (ctx) => {
    await removeMember(services, writer(ctx).principal, readMemberPath(ctx), ifMatchOptions(ctx))
    ctx.set('Content-Type', FHIR_JSON)
    ctx.body = JSON.stringify(allOk)
  })
}

function readMemberPath(ctx: Context & { params: Record<string, string> }): MemberPath {
  return { projectId: ctx.params.id ?? '', id: ctx.params.member ?? '' }
}

function ifMatchOptions(ctx: Context): WriteOptions {
  return writeOptions({ headers: { 'if-match': ctx.get('If-Match') || undefined } })
}

type Body = Record<string, unknown>

/** Answered 202; the work is an AsyncJob. */
const ASYNC: Readonly<Record<string, (call: SuperCall, body: Body) => Promise<FhirReply>>> = {
  reindex: startReindex,
  structuredefinitions: acceptCompletedJob,
  valuesets: acceptCompletedJob,
  searchparameters: acceptCompletedJob,
  reloadcron: reloadCron,
  rebuildprojectid: acceptCompletedJob,
  migrate: acceptCompletedJob,
}
const READ: Readonly<Record<string, (call: SuperCall) => Promise<object>>> = {
  migrations,
  queues: queueStatus,
  mails: outboxMails,
  workers: workerStatus,
}
/** They are of another database than ours; each with what there is instead. */
const OTHERS: Readonly<Record<string, string>> = {
  vacuum: 'PostgreSQL vacuums by itself',
  tablesettings: 'use the tools of PostgreSQL',
  setdataversion: 'no migration of data waits here',
  'reconcile-db-schema-drift': 'the release step migrates',
}

/** Adds its routes to those of `/admin`. */
function superRoutes(routes: RouteFamily, { services, metrics }: Web): void {
  const { maxBodyBytes } = services.config
  const toSuperCall = (ctx: Context, name: string) => superCall(services, ctx, name)
  const readOptionalBody = async (ctx: Context): Promise<Body> => {
    const body = await readBody(ctx, maxBodyBytes)
    if (body === undefined) return {}
    ctx.state.body = body
    return await readJsonObject(ctx, maxBodyBytes)
  }

  routes.post('/projects/setpassword', 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    await setProjectPassword(services, caller(ctx).principal, body)
    sendOk(ctx)
  })
  routes.post('/super/setpassword', 'super-administrator', async (ctx) => {
    const { principal } = toSuperCall(ctx, 'setpassword')
    await setAnyPassword(services, principal, await readJsonObject(ctx, maxBodyBytes))
    sendOk(ctx)
  })
  routes.post('/super/purge', 'super-administrator', async (ctx) => {
    const call = toSuperCall(ctx, 'purge')
    ctx.body = await purge(call, await readJsonObject(ctx, maxBodyBytes))
  })
  routes.post('/super/removebotidjobsfromqueue', 'super-administrator', async (ctx) => {
    const call = toSuperCall(ctx, 'removebotidjobsfromqueue')
    await removeBotSchedule(call, await readJsonObject(ctx, maxBodyBytes))
    sendOk(ctx)
  })
  routes.post('/super/rotatekeys', 'super-administrator', async (ctx) => {
    const { principal } = toSuperCall(ctx, 'rotatekeys')
    await services.tokens.keys.rotate()
    const who = principal.profile
    audit(services, ctx, { kind: 'login', outcome: '0', what: 'Signing keys rotated', who })
    sendOk(ctx)
  })
  for (const [name, start] of Object.entries(ASYNC)) {
    routes.post(`/super/${name}`, 'super-administrator', async (ctx) => {
      const call = toSuperCall(ctx, name)
      requireAsync(call.request)
      await send(ctx, await start(call, await readOptionalBody(ctx)))
    })
  }
  for (const [name, read] of Object.entries(READ)) {
    routes.get(`/super/${name}`, 'super-administrator', async (ctx) => {
      ctx.body = await read(toSuperCall(ctx, name))
    })
  }
  routes.get('/super/metrics', 'super-administrator', async (ctx) => {
    toSuperCall(ctx, 'metrics')
    ctx.body = { metrics: await metrics.values() }
  })
  for (const [name, instead] of Object.entries(OTHERS)) {
    routes.post(`/super/${name}`, 'super-administrator', (ctx) => {
      toSuperCall(ctx, name)
      throw notSupported(`${name} is not offered: ${instead}`)
    })
  }
}

/** The request as long operations read one. Errors: 403 for others than super administrators. */
function superCall(services: Services, ctx: Context, name: string): SuperCall {
  const { principal } = caller(ctx)
  requireSuperAdmin(principal)
  const { requestId, traceId } = ctx.state
  const headers = ctx.req.headers as Record<string, string | undefined>
  const query = new URLSearchParams()
  const request = { method: ctx.method, path: `$${name}`, query, headers, body: undefined }
  return { services, principal, request: { ...request, requestId, traceId } }
}

function sendOk(ctx: Context): void {
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = JSON.stringify(allOk)
}

// The work that a Project does by itself, for its administrators: Bots on a schedule, deliveries of Subscriptions.

/** The next and the last run of each. Errors: 403, 404. */
async function schedules({ principals, database }: Services, caller: Principal, projectId: string) {
  const project = await administeredProject(principals, caller, projectId)
  const found = await listScheduledBots(database, project.number)
  return {
    schedules: found.map(({ bot, ...times }) => ({
      bot: { reference: `Bot/${bot.id}`, display: bot.name },
      ...readSchedule(bot),
      ...times,
    })),
  }
}

/** How deliveries go, a row a Subscription that has had any. Errors: 403, 404. */
async function subscriptionStates(
  { principals, database }: Services,
  caller: Principal,
  projectId: string,
) {
  const project = await administeredProject(principals, caller, projectId)
  const states = await listSubscriptionStates(database, project.number)
  return {
    subscriptions: states.map(({ id, ...state }) => ({
      subscription: { reference: `Subscription/${id}` },
      ...state,
    })),
  }
}

/** Errors: 403, 404. */
async function storage({ principals, database }: Services, caller: Principal, projectId: string) {
  const project = await administeredProject(principals, caller, projectId)
  return await estimateStorage(database, project.number)
}

const CHANGES = { c: 'create', u: 'update', d: 'delete' } as const

/** Deliveries of a Subscription that wait or have failed, with the last answer to each. Errors: 403, 404, 410. */
async function pendingDeliveries(
  { principals, repository }: Services,
  caller: Principal,
  { projectId, id }: { readonly projectId: string; readonly id: string },
) {
  await administeredProject(principals, caller, projectId)
  const found = await repository.withStore((store) => findPendingDeliveries(store, caller, id))
  return {
    deliveries: found.map(({ type, resource, op, ...delivery }) => ({
      ...delivery,
      resource: { reference: `${typeName(type)}/${resource}` },
      interaction: CHANGES[op],
    })),
  }
}
