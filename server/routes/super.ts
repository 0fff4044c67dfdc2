/** `/admin/super/**` and the passwords that administrators set. */
import { allOk, notSupported } from '../../shared/errors.ts'
import { FHIR_JSON } from '../../shared/request/reply.ts'
import type { FhirReply } from '../../shared/request/request.ts'
import type { Services } from '../../shared/services.ts'
import { type Context, caller, type Web } from '../context.ts'
import { audit } from '../identity/logins.ts'
import { readBody, readJsonObject } from '../middleware/body.ts'
import { setAnyPassword, setProjectPassword } from '../projects/admin/members.ts'
import {
  migrations,
  nothingToDo,
  outboxMails,
  purge,
  queuesNow,
  reloadCron,
  removeBotSchedule,
  requireAsync,
  requireSuperAdmin,
  type SuperCall,
  startReindex,
} from '../projects/admin/super.ts'
import { send } from '../send.ts'
import type { RouteFamily } from './table.ts'

type Body = Record<string, unknown>

/** Answered 202; the work is an AsyncJob. */
const ASYNC: Readonly<Record<string, (call: SuperCall, body: Body) => Promise<FhirReply>>> = {
  reindex: startReindex,
  structuredefinitions: nothingToDo,
  valuesets: nothingToDo,
  searchparameters: nothingToDo,
  reloadcron: reloadCron,
  rebuildprojectid: nothingToDo,
  migrate: nothingToDo,
}
const READ: Readonly<Record<string, (call: SuperCall) => Promise<object>>> = {
  migrations,
  queues: queuesNow,
  mails: outboxMails,
}
/** They are of another database than ours. */
const OTHERS = ['vacuum', 'tablesettings', 'setdataversion', 'reconcile-db-schema-drift']

/** Adds its routes to those of `/admin`. */
export function superRoutes(routes: RouteFamily, { services }: Web): void {
  const { maxBodyBytes } = services.config
  const callOf = (ctx: Context, name: string) => superCall(services, ctx, name)
  const bodyOf = async (ctx: Context): Promise<Body> => {
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
    const { principal } = callOf(ctx, 'setpassword')
    await setAnyPassword(services, principal, await readJsonObject(ctx, maxBodyBytes))
    sendOk(ctx)
  })
  routes.post('/super/purge', 'super-administrator', async (ctx) => {
    const call = callOf(ctx, 'purge')
    ctx.body = await purge(call, await readJsonObject(ctx, maxBodyBytes))
  })
  routes.post('/super/removebotidjobsfromqueue', 'super-administrator', async (ctx) => {
    const call = callOf(ctx, 'removebotidjobsfromqueue')
    await removeBotSchedule(call, await readJsonObject(ctx, maxBodyBytes))
    sendOk(ctx)
  })
  routes.post('/super/rotatekeys', 'super-administrator', async (ctx) => {
    const { principal } = callOf(ctx, 'rotatekeys')
    await services.tokens.keys.rotate()
    const who = principal.profile
    audit(services, ctx, { kind: 'login', outcome: '0', what: 'Signing keys rotated', who })
    sendOk(ctx)
  })
  for (const [name, start] of Object.entries(ASYNC)) {
    routes.post(`/super/${name}`, 'super-administrator', async (ctx) => {
      const call = callOf(ctx, name)
      requireAsync(call.request)
      await send(ctx, await start(call, await bodyOf(ctx)))
    })
  }
  for (const [name, read] of Object.entries(READ)) {
    routes.get(`/super/${name}`, 'super-administrator', async (ctx) => {
      ctx.body = await read(callOf(ctx, name))
    })
  }
  for (const name of OTHERS) {
    routes.post(`/super/${name}`, 'super-administrator', (ctx) => {
      callOf(ctx, name)
      throw notSupported('Not supported')
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
