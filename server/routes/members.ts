/** `/admin/projects/:id/invite` and `/admin/projects/:id/members/**`. */
import type Router from '@koa/router'
import { administeredProject } from '../../shared/api/admin/access.ts'
import { inviteMember, userOf } from '../../shared/api/admin/invite.ts'
import { handle } from '../../shared/api/handle.ts'
import { readQuery } from '../../shared/api/negotiate.ts'
import { writeOptions } from '../../shared/api/preconditions.ts'
import { FHIR_JSON } from '../../shared/api/reply.ts'
import { unsupportedMediaType } from '../../shared/errors.ts'
import { allOk } from '../../shared/fhir/outcome.ts'
import type { WriteOptions } from '../../shared/store/repository.ts'
import {
  type MemberPath,
  patchMember,
  readMember,
  removeMember,
  replaceMember,
} from '../admin/members.ts'
import { type Context, caller, type State, type Web, writer } from '../context.ts'
import { readJson, readJsonObject } from '../middleware/body.ts'
import { send, sendVersion } from '../send.ts'

const MEMBERS = '/projects/:id/members'
const MEMBER = `${MEMBERS}/:member`

/** Adds its routes to those of `/admin`. */
export function memberRoutes(router: Router<State>, { services }: Web): void {
  const { baseUrl, maxBodyBytes } = services.config

  router.post('/projects/:id/invite', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    const { principal, session } = writer(ctx)
    const id = ctx.params.id ?? ''
    const { membership } = await inviteMember(services, principal, userOf(session), id, body)
    sendVersion(ctx, 200, membership, baseUrl)
  })
  router.get(MEMBERS, async (ctx) => {
    const { principal } = caller(ctx)
    const project = await administeredProject(services.principals, principal, ctx.params.id ?? '')
    const query = readQuery(ctx.querystring)
    query.append('project', `Project/${project.id}`)
    const { requestId, traceId } = ctx.state
    const headers = ctx.req.headers as Record<string, string | undefined>
    const request = { method: 'GET', path: 'ProjectMembership', query, headers, body: undefined }
    await send(ctx, await handle(services, principal, { ...request, requestId, traceId }))
  })
  router.get(MEMBER, async (ctx) => {
    const found = await readMember(services, caller(ctx).principal, pathOf(ctx))
    sendVersion(ctx, 200, found, baseUrl)
  })
  for (const method of ['post', 'put'] as const) {
    router[method](MEMBER, async (ctx) => {
      const body = await readJsonObject(ctx, maxBodyBytes)
      const { principal } = writer(ctx)
      const written = await replaceMember(services, principal, pathOf(ctx), body, optionsOf(ctx))
      sendVersion(ctx, 200, written, baseUrl)
    })
  }
  router.patch(MEMBER, async (ctx) => {
    if (!/^application\/json-patch\+json\s*(;|$)/i.test(ctx.get('Content-Type'))) {
      throw unsupportedMediaType()
    }
    const body = await readJson(ctx, maxBodyBytes)
    const { principal } = writer(ctx)
    const written = await patchMember(services, principal, pathOf(ctx), body, optionsOf(ctx))
    sendVersion(ctx, 200, written, baseUrl)
  })
  router.delete(MEMBER, async (ctx) => {
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
