/** `/admin/super/**` for the whole service, and passwords set by administrators. */

import { notSupported } from '../../shared/core/errors.ts'
import { completedJob } from '../../shared/jobs/async-requests.ts'
import type { CallText, FhirReply } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import { JSON_BYTES, readBody, readJsonObject } from '../http/body.ts'
import { type Context, caller, requestIn, type Web } from '../http/context.ts'
import { send, sendOk } from '../http/send.ts'
import { audit } from '../identity/sign-in-audit.ts'
import { idempotentRequests } from '../middleware/once.ts'
import { setAnyPassword, setProjectPassword } from '../projects/admin/members.ts'
import {
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
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const WITH_JOB =
  'Answered 202; `Content-Location` is the address of an AsyncJob. Takes `Prefer: respond-async`.'
const NOTHING = `Another database would need this; here the job is complete at once. ${WITH_JOB}`
const FOREIGN = 'A call of another database. It is always refused as not supported.'
/** A job that is complete at once, as another database would need it. */
function completedAtOnce(summary: string, start = ''): CallText {
  return { summary, description: `${start}${NOTHING}`, answer: 'OperationOutcome', status: 202 }
}

const TEXTS: RouteTexts = {
  'POST /projects/setpassword': {
    summary: 'Set the password of a person of the project',
    description: 'Their sessions end.',
    body: {
      email: 'text!: Who',
      password: 'text!: The new password',
      projectId: 'text: For super admins',
    },
    answer: 'OperationOutcome',
  },
  'POST /super/setpassword': {
    summary: 'Set the password of any user',
    body: {
      email: 'text!: Who',
      password: 'text!: The new password',
      projectId: 'text: Of a person of a project',
    },
    answer: 'OperationOutcome',
  },
  'POST /super/purge': {
    summary: 'Delete old AuditEvents or Logins',
    description: 'Deletes rows older than `before` with their history.',
    body: { resourceType: 'text!: AuditEvent or Login', before: 'text!: A time' },
    answer: 'object',
  },
  'POST /super/removebotidjobsfromqueue': {
    summary: 'Stop the schedule of a bot',
    description: 'The bot stays unscheduled until its schedule is written again.',
    body: { botId: 'text!: Id of the Bot' },
    answer: 'OperationOutcome',
  },
  'POST /super/rotatekeys': {
    summary: 'Create a new signing key',
    description: 'Tokens signed by older keys remain valid until they expire.',
    answer: 'OperationOutcome',
  },
  'POST /super/reindex': {
    summary: 'Reindex resources',
    description: WITH_JOB,
    body: {
      resourceType: 'text!: A type, a comma list, or *',
      filter: 'text: A search',
      maxResourceVersion: 'whole: Ignored where the index has no versions',
    },
    answer: 'OperationOutcome',
    status: 202,
  },
  'POST /super/reloadcron': {
    summary: 'Plan all schedules again',
    description: WITH_JOB,
    answer: 'OperationOutcome',
    status: 202,
  },
  'POST /super/structuredefinitions': completedAtOnce('Rebuild StructureDefinitions'),
  'POST /super/valuesets': completedAtOnce('Rebuild ValueSets'),
  'POST /super/searchparameters': completedAtOnce('Rebuild SearchParameters'),
  'POST /super/rebuildprojectid': completedAtOnce('Rebuild project ids'),
  'POST /super/migrate': completedAtOnce('Migrate the database', 'The release step does it. '),
  'GET /super/migrations': { summary: 'List the migrations that have run', answer: 'object' },
  'GET /super/queues': { summary: 'Read the status of the queues', answer: 'object' },
  'GET /super/workers': {
    summary: 'List the workers',
    description: 'The live workers with their clock status and metrics.',
    answer: 'object',
  },
  'GET /super/metrics': {
    summary: 'Read the metrics as JSON',
    description: 'The values of `/metrics`, without the buckets of histograms.',
    answer: 'object',
  },
  'GET /super/mails': {
    summary: 'Read the outbox',
    description: 'The newest mails; without a mail server, read invitations here.',
    answer: 'object',
  },
  'POST /super/vacuum': { summary: 'Vacuum', description: FOREIGN },
  'POST /super/tablesettings': { summary: 'Set table parameters', description: FOREIGN },
  'POST /super/setdataversion': { summary: 'Set the data version', description: FOREIGN },
  'POST /super/reconcile-db-schema-drift': {
    summary: 'Reconcile the schema',
    description: FOREIGN,
  },
}

type Body = Record<string, unknown>

/** Answered with 202 and an AsyncJob, which is complete at once if the service did the work at startup. */
const ASYNC: Readonly<Record<string, (call: SuperCall, body: Body) => Promise<FhirReply>>> = {
  reindex: startReindex,
  structuredefinitions: completedJob,
  valuesets: completedJob,
  searchparameters: completedJob,
  reloadcron: reloadCron,
  rebuildprojectid: completedJob,
  migrate: completedJob,
}
const READ: Readonly<Record<string, (call: SuperCall) => Promise<object>>> = {
  migrations,
  queues: queueStatus,
  mails: outboxMails,
  workers: workerStatus,
}
/** Routes for another database, with the replacement of each. */
const OTHERS: Readonly<Record<string, string>> = {
  vacuum: 'PostgreSQL vacuums by itself',
  tablesettings: 'use the tools of PostgreSQL',
  setdataversion: 'no migration of data waits here',
  'reconcile-db-schema-drift': 'the release step migrates',
}

export function superRoutes(web: Web): RouteFamily {
  const { services } = web
  const routes = createRoutes({ prefix: '/admin', texts: TEXTS, inside: [idempotentRequests(web)] })
  const toCall = (ctx: Context, name: string) => superCall(services, ctx, name)

  routes.post('/projects/setpassword', 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx)
    await setProjectPassword(services, caller(ctx).principal, body)
    sendOk(ctx)
  })
  routes.post('/super/setpassword', 'super-administrator', async (ctx) => {
    const { principal } = toCall(ctx, 'setpassword')
    await setAnyPassword(services, principal, await readJsonObject(ctx))
    sendOk(ctx)
  })
  routes.post('/super/purge', 'super-administrator', async (ctx) => {
    const call = toCall(ctx, 'purge')
    ctx.body = await purge(call, await readJsonObject(ctx))
  })
  routes.post('/super/removebotidjobsfromqueue', 'super-administrator', async (ctx) => {
    const call = toCall(ctx, 'removebotidjobsfromqueue')
    await removeBotSchedule(call, await readJsonObject(ctx))
    sendOk(ctx)
  })
  routes.post('/super/rotatekeys', 'super-administrator', async (ctx) => {
    const { principal } = toCall(ctx, 'rotatekeys')
    await services.tokens.keys.rotate()
    const who = principal.profile
    audit(services, ctx, { kind: 'login', outcome: '0', what: 'Signing keys rotated', who })
    sendOk(ctx)
  })
  addNamed(routes, web)
  return routes
}

function addNamed(routes: RouteFamily, { services, metrics }: Web): void {
  const toCall = (ctx: Context, name: string) => superCall(services, ctx, name)
  for (const [name, start] of Object.entries(ASYNC)) {
    routes.post(`/super/${name}`, 'super-administrator', async (ctx) => {
      const call = toCall(ctx, name)
      requireAsync(call.request)
      await send(ctx, await start(call, await bodyIn(ctx)))
    })
  }
  for (const [name, read] of Object.entries(READ)) {
    routes.get(`/super/${name}`, 'super-administrator', async (ctx) => {
      ctx.body = await read(toCall(ctx, name))
    })
  }
  routes.get('/super/metrics', 'super-administrator', async (ctx) => {
    toCall(ctx, 'metrics')
    ctx.body = { metrics: await metrics.values() }
  })
  for (const [name, instead] of Object.entries(OTHERS)) {
    routes.post(`/super/${name}`, 'super-administrator', (ctx) => {
      toCall(ctx, name)
      throw notSupported(`${name} is not offered: ${instead}`)
    })
  }
}

/** Returns the body, or an empty one. Errors: 400, 413, 415. */
async function bodyIn(ctx: Context): Promise<Body> {
  const body = await readBody(ctx, JSON_BYTES)
  if (body === undefined) return {}
  ctx.state.body = body
  return await readJsonObject(ctx)
}

/** Returns the request for long operations. Errors: 403 for callers other than super administrators. */
function superCall(services: Services, ctx: Context, name: string): SuperCall {
  const { principal } = caller(ctx)
  requireSuperAdmin(principal)
  const request = requestIn(ctx, `$${name}`, undefined)
  const query = new URLSearchParams()
  return { services, principal, request: { ...request, query, queryText: undefined } }
}
