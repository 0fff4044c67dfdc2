/** `/admin/**`: projects and what belongs to them. */
import { caller, type Web, writer } from '../context.ts'
import { readJson, readJsonObject } from '../middleware/body.ts'
import { once } from '../middleware/once.ts'
import { botStats } from '../projects/admin/bot-stats.ts'
import { addBot, addClient } from '../projects/admin/programs.ts'
import { createProject, readProject, replaceProjectList } from '../projects/admin/projects.ts'
import { sendVersion } from '../send.ts'
import { memberRoutes } from './members.ts'
import { superRoutes } from './super.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const LISTS = [
  ['secrets', 'secret'],
  ['settings', 'setting'],
  ['sites', 'site'],
] as const

export function adminRoutes(web: Web): RouteFamily {
  const { services } = web
  const routes = createRoutes({ prefix: '/admin', inside: [once(web)] })
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
  for (const [path, list] of LISTS) {
    routes.post(`/projects/:id/${path}`, 'administrator', async (ctx) => {
      const body = await readJson(ctx, maxBodyBytes)
      const { principal } = writer(ctx)
      const id = ctx.params.id ?? ''
      const written = await replaceProjectList(services, principal, id, list, body)
      sendVersion(ctx, 200, written, baseUrl)
    })
  }
  memberRoutes(routes, web)
  superRoutes(routes, web)
  return routes
}
