/** `/admin/super/**` and the passwords that administrators set. */
import type Router from '@koa/router'
import type { FhirReply } from '../../shared/api/handle.ts'
import { FHIR_JSON } from '../../shared/api/reply.ts'
import { notSupported } from '../../shared/errors.ts'
import { allOk } from '../../shared/fhir/outcome.ts'
import { setAnyPassword, setProjectPassword } from '../admin/passwords.ts'
import {
  keptMails,
  migrations,
  nothingToDo,
  purge,
  queuesNow,
  reloadCron,
  removeBotSchedule,
  requireAsync,
  requireSuperAdmin,
  type SuperCall,
  startReindex,
} from '../admin/super.ts'
import { audit } from '../auth/audit.ts'
import { type Context, caller, type State, type Web } from '../context.ts'
import { readBody, readJsonObject } from '../middleware/body.ts'
import { send } from '../send.ts'

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
  mails: keptMails,
}
/** They are of another database than ours. */
const OTHERS = ['vacuum', 'tablesettings', 'setdataversion', 'reconcile-db-schema-drift']

/** Adds its routes to those of `/admin`. */
export function superRoutes(router: Router<State>, { services }: Web): void {
  const { maxBodyBytes } = services.config
  const callOf = (ctx: Context, name: string): SuperCall => {
    const { principal } = caller(ctx)
    requireSuperAdmin(principal)
    const { requestId, traceId } = ctx.state
    const headers = ctx.req.headers as Record<string, string | undefined>
    const query = new URLSearchParams()
    const request = { method: ctx.method, path: `$${name}`, query, headers, body: undefined }
    return { services, principal, request: { ...request, requestId, traceId } }
  }
  const bodyOf = async (ctx: Context): Promise<Body> => {
    const body = await readBody(ctx, maxBodyBytes)
    if (body === undefined) return {}
    ctx.state.body = body
    return await readJsonObject(ctx, maxBodyBytes)
  }

  router.post('/projects/setpassword', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    await setProjectPassword(services, caller(ctx).principal, body)
    sendOk(ctx)
  })
  router.post('/super/setpassword', async (ctx) => {
    const { principal } = callOf(ctx, 'setpassword')
    await setAnyPassword(services, principal, await readJsonObject(ctx, maxBodyBytes))
    sendOk(ctx)
  })
  router.post('/super/purge', async (ctx) => {
    const call = callOf(ctx, 'purge')
    ctx.body = await purge(call, await readJsonObject(ctx, maxBodyBytes))
  })
  router.post('/super/removebotidjobsfromqueue', async (ctx) => {
    const call = callOf(ctx, 'removebotidjobsfromqueue')
    await removeBotSchedule(call, await readJsonObject(ctx, maxBodyBytes))
    sendOk(ctx)
  })
  router.post('/super/rotatekeys', async (ctx) => {
    const { principal } = callOf(ctx, 'rotatekeys')
    await services.tokens.keys.rotate()
    const who = principal.profile
    audit(services, ctx, { kind: 'login', outcome: '0', what: 'Signing keys rotated', who })
    sendOk(ctx)
  })
  for (const [name, start] of Object.entries(ASYNC)) {
    router.post(`/super/${name}`, async (ctx) => {
      const call = callOf(ctx, name)
      requireAsync(call.request)
      await send(ctx, await start(call, await bodyOf(ctx)))
    })
  }
  for (const [name, read] of Object.entries(READ)) {
    router.get(`/super/${name}`, async (ctx) => {
      ctx.body = await read(callOf(ctx, name))
    })
  }
  for (const name of OTHERS) {
    router.post(`/super/${name}`, (ctx) => {
      callOf(ctx, name)
      throw notSupported('Not supported')
    })
  }
}

function sendOk(ctx: Context): void {
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = JSON.stringify(allOk)
}
