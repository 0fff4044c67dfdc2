/** `/admin/projects/:id/invite` and `/admin/projects/:id/members/**`. */
import { handle } from '../../shared/api/handle.ts'
import { allOk, unsupportedMediaType } from '../../shared/errors.ts'
import { administeredProject } from '../../shared/projects/access.ts'
import { inviteMember, userOf } from '../../shared/projects/invite.ts'
import { readQuery } from '../../shared/request/negotiate.ts'
import { writeOptions } from '../../shared/request/preconditions.ts'
import { FHIR_JSON } from '../../shared/request/reply.ts'
import type { WriteOptions } from '../../shared/store/rows/version.ts'
import { type Context, caller, type Web, writer } from '../context.ts'
import { readJson, readJsonObject } from '../middleware/body.ts'
import {
  type MemberPath,
  patchMember,
  readMember,
  removeMember,
  replaceMember,
} from '../projects/admin/members.ts'
import { send, sendVersion } from '../send.ts'
import type { RouteFamily } from './table.ts'

const MEMBERS = '/projects/:id/members'
const MEMBER = `${MEMBERS}/:member`

/** Adds its routes to those of `/admin`. */
export function memberRoutes(routes: RouteFamily, { services }: Web): void {
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
