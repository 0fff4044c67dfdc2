/** `/admin/**`: projects and what belongs to them. */

import { handle } from '../../shared/api/handle.ts'
import { allOk, unsupportedMediaType } from '../../shared/errors.ts'
import { inviteMember, userOf } from '../../shared/projects/invite.ts'
import { administeredProject } from '../../shared/projects/ownership.ts'
import { readQuery } from '../../shared/request/negotiate.ts'
import { writeOptions } from '../../shared/request/preconditions.ts'
import { FHIR_JSON } from '../../shared/request/reply.ts'
import type { WriteOptions } from '../../shared/store/rows/version.ts'
import { type Context, caller, type Web, writer } from '../context.ts'
import { readJson, readJsonObject } from '../middleware/body.ts'
import { once } from '../middleware/once.ts'
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
import { send, sendVersion } from '../send.ts'
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
    const { membership } = await inviteMember(services, principal, userOf(session), id, body)
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
    const found = await readMember(services, caller(ctx).principal, pathOf(ctx))
    sendVersion(ctx, 200, found, baseUrl)
  })
  for (const method of ['post', 'put'] as const) {
    routes[method](MEMBER, 'administrator', async (ctx) => {
      const body = await readJsonObject(ctx, maxBodyBytes)
      const { principal } = writer(ctx)
      const written = await replaceMember(services, principal, pathOf(ctx), body, optionsOf(ctx))
      sendVersion(ctx, 200, written, baseUrl)
    })
  }
  routes.patch(MEMBER, 'administrator', async (ctx) => {
    if (!/^application\/json-patch\+json\s*(;|$)/i.test(ctx.get('Content-Type'))) {
      throw unsupportedMediaType()
    }
    const body = await readJson(ctx, maxBodyBytes)
    const { principal } = writer(ctx)
    const written = await patchMember(services, principal, pathOf(ctx), body, optionsOf(ctx))
    sendVersion(ctx, 200, written, baseUrl)
  })
  routes.delete(MEMBER, 'administrator', async (ctx) => {
    await removeMember(services, writer(ctx).principal, pathOf(ctx), optionsOf(ctx))
    ctx.set('Content-Type', FHIR_JSON)
    ctx.body = JSON.stringify(allOk)
  })
}

function pathOf(ctx: Context & { params: Record<string, string> }): MemberPath {
  return { projectId: ctx.params.id ?? '', id: ctx.params.member ?? '' }
}

function optionsOf(ctx: Context): WriteOptions {
  return writeOptions({ headers: { 'if-match': ctx.get('If-Match') || undefined } })
}
