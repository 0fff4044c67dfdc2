/** `/admin/**`: projects and what belongs to them. */
import Router from '@koa/router'
import { FHIR_JSON } from '../../shared/api/reply.ts'
import type { Version } from '../../shared/store/repository.ts'
import { present } from '../../shared/store/rows.ts'
import { addBot, addClient } from '../admin/programs.ts'
import { createProject, readProject, replaceProjectList } from '../admin/projects.ts'
import { type Context, caller, type Middleware, type State, type Web } from '../context.ts'
import { readJson, readJsonObject } from '../middleware/body.ts'
import { once } from '../middleware/once.ts'

const LISTS = [
  ['secrets', 'secret'],
  ['settings', 'setting'],
  ['sites', 'site'],
] as const

export function adminRoutes(web: Web, authenticate: Middleware): Router<State> {
  const { services } = web
  const router = new Router<State>({ prefix: '/admin' })
  const { baseUrl, maxBodyBytes } = services.config
  router.use(authenticate, once(web))

  router.post('/Project', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    const written = await createProject(services, caller(ctx).principal, body)
    send(ctx, 201, written, baseUrl)
  })
  router.get('/projects/:id', async (ctx) => {
    ctx.body = await readProject(services, caller(ctx).principal, ctx.params.id ?? '')
  })
  router.post('/projects/:id/client', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    const client = await addClient(services, caller(ctx).principal, ctx.params.id ?? '', body)
    send(ctx, 201, client, baseUrl)
  })
  router.post('/projects/:id/bot', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    const bot = await addBot(services, caller(ctx).principal, ctx.params.id ?? '', body)
    send(ctx, 201, bot, baseUrl)
  })
  for (const [path, list] of LISTS) {
    router.post(`/projects/:id/${path}`, async (ctx) => {
      const body = await readJson(ctx, maxBodyBytes)
      const { principal } = caller(ctx)
      const id = ctx.params.id ?? ''
      const written = await replaceProjectList(services, principal, id, list, body)
      send(ctx, 200, written, baseUrl)
    })
  }
  return router
}

/** A new resource says where it is; `X-Medplum: extended` asks for the platform's meta. */
function send(ctx: Context, status: number, version: Version, baseUrl: string): void {
  const { principal } = caller(ctx)
  ctx.status = status
  if (status === 201) ctx.set('Location', `${baseUrl}fhir/R4/${version.type}/${version.id}`)
  ctx.set('ETag', `W/"${version.ver}"`)
  ctx.set('Last-Modified', version.lastUpdated.toUTCString())
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = present(version, principal, ctx.get('X-Medplum') === 'extended')
}
