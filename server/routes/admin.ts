/** `/admin/**`: projects and what belongs to them. */
import Router from '@koa/router'
import { botStats } from '../admin/bot-stats.ts'
import { addBot, addClient } from '../admin/programs.ts'
import { createProject, readProject, replaceProjectList } from '../admin/projects.ts'
import { caller, type Middleware, type State, type Web, writer } from '../context.ts'
import { readJson, readJsonObject } from '../middleware/body.ts'
import { once } from '../middleware/once.ts'
import { sendVersion } from '../send.ts'
import { memberRoutes } from './members.ts'
import { superRoutes } from './super.ts'

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
    const written = await createProject(services, writer(ctx).principal, body)
    sendVersion(ctx, 201, written, baseUrl)
  })
  router.get('/projects/:id', async (ctx) => {
    ctx.body = await readProject(services, caller(ctx).principal, ctx.params.id ?? '')
  })
  router.post('/projects/:id/client', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    const client = await addClient(services, writer(ctx).principal, ctx.params.id ?? '', body)
    sendVersion(ctx, 201, client, baseUrl)
  })
  router.post('/projects/:id/bot', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    const bot = await addBot(services, writer(ctx).principal, ctx.params.id ?? '', body)
    sendVersion(ctx, 201, bot, baseUrl)
  })
  router.get('/projects/:id/bots/stats', async (ctx) => {
    ctx.body = await botStats(services, caller(ctx).principal, ctx.params.id ?? '')
  })
  for (const [path, list] of LISTS) {
    router.post(`/projects/:id/${path}`, async (ctx) => {
      const body = await readJson(ctx, maxBodyBytes)
      const { principal } = writer(ctx)
      const id = ctx.params.id ?? ''
      const written = await replaceProjectList(services, principal, id, list, body)
      sendVersion(ctx, 200, written, baseUrl)
    })
  }
  memberRoutes(router, web)
  superRoutes(router, web)
  return router
}
