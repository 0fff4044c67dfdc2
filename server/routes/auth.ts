/** `/auth/**`: who the caller is. */
import Router from '@koa/router'
import { effectiveEntries } from '../../shared/access/effective.ts'
import type { Principal } from '../../shared/access/principal.ts'
import { type Resource, referenceTo } from '../../shared/fhir/resource.ts'
import type { Session } from '../../shared/store/principals.ts'
import { caller, type Middleware, type State } from '../context.ts'

export function authRoutes(authenticate: Middleware): Router<State> {
  const router = new Router<State>()
  router.get('/auth/me', authenticate, (ctx) => {
    const { session, principal } = caller(ctx)
    const { project, membership, profile } = session
    ctx.body = {
      project: {
        resourceType: 'Project',
        id: project.id,
        name: project.name,
        description: project.description,
        strictMode: principal.project.strictMode,
        superAdmin: principal.project.superAdmin,
      },
      membership: {
        resourceType: 'ProjectMembership',
        id: membership.id,
        identifier: membership.identifier,
        user: membership.user,
        profile: membership.profile,
        admin: membership.admin,
      },
      profile: withoutSecrets(profile),
      config: configurationOf(principal, membership),
      accessPolicy: effectivePolicy(session),
    }
  })
  return router
}

/** A client reads itself here; its secret is for its administrators. */
function withoutSecrets(profile: Resource): Resource {
  const { secret: _, retiringSecret: __, ...rest } = profile
  return rest as Resource
}

function effectivePolicy({ principal, policies }: Session) {
  return {
    resourceType: 'AccessPolicy',
    ...(policies.length === 0
      ? {}
      : { basedOn: policies.map((policy) => ({ reference: referenceTo(policy) })) }),
    resource: effectiveEntries(principal),
  }
}

function configurationOf(principal: Principal, membership: Resource) {
  const menu = [{ title: 'Favorites', link: [link('Patient'), link('Practitioner')] }]
  if (membership.admin === true) {
    const admin = [
      { name: 'Project', target: '/admin/project' },
      link('AccessPolicy'),
      link('Bot'),
      link('ClientApplication'),
    ]
    menu.push({ title: 'Admin', link: admin })
  }
  if (principal.isSuperAdmin) {
    menu.push({ title: 'Super Admin', link: [link('Project'), link('User')] })
  }
  return { resourceType: 'UserConfiguration', menu }
}

function link(type: string) {
  return { name: type, target: `/${type}` }
}
