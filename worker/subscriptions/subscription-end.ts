/** Subscriptions that the service ends itself: their time is over, or nothing reaches anybody. */
import { systemPrincipal } from '../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
import { SUBSCRIPTION } from '../../shared/access/subscription.ts'
import { HttpError } from '../../shared/errors.ts'
import { parseReference, type Resource, referenceIn } from '../../shared/fhir/resource.ts'
import { subscriptionMail } from '../../shared/projects/mail-texts.ts'
import type { Services } from '../../shared/services.ts'
import { find } from '../../shared/store/rows/lookups.ts'
import { parseVersion, toVersion } from '../../shared/store/rows/rows.ts'
import { endedSubscriptions } from '../../shared/subscriptions/state.ts'

const MOST_MEMBERSHIPS = 1000
const system = systemPrincipal(SYSTEM_PROJECT)

interface End {
  readonly status: 'off' | 'error'
  readonly error?: string
}

/** One of several workers does it, and the admins of the Project get one mail about an error. */
export async function endSubscription(
  services: Services,
  { id = '', meta }: Resource,
  end: End,
): Promise<void> {
  const { repository, principals, config } = services
  const project = await principals.project(meta?.project ?? '')
  if (project === undefined) return
  const { error } = end
  const emails = error === undefined ? [] : await adminsOf(services, project.id)
  await repository.transaction(async (inner) => {
    let isEnded = false
    await inner.patch(systemPrincipal(project), { type: SUBSCRIPTION, id }, (current) => {
      isEnded = current.status === 'active'
      return isEnded ? { ...current, ...end } : current
    })
    if (!isEnded || error === undefined) return
    for (const email of emails) {
      await inner.addMail(
        project.id,
        subscriptionMail(config, email, { projectName: project.name, id, error }),
      )
    }
  })
}

/** Ends Subscriptions whose `end` is over. */
export async function endOverdue(services: Services): Promise<void> {
  for (const row of await endedSubscriptions(services.database)) {
    await endSubscription(services, parseVersion(toVersion(row)), { status: 'off' }).catch(
      (error: unknown) => {
        // It is gone, or somebody else has changed it just now.
        if (!(error instanceof HttpError) || error.status >= 500) throw error
      },
    )
  }
}

/** E-mail addresses of a Project's admins. */
async function adminsOf({ repository }: Services, projectId: string): Promise<readonly string[]> {
  const condition = {
    code: 'project',
    type: 'reference',
    modifier: undefined,
    values: [`Project/${projectId}`],
  } as const
  const found = await find(repository, system, 'ProjectMembership', {
    conditions: [condition],
    count: MOST_MEMBERSHIPS,
  })
  const ids = found
    .filter(({ admin, active }) => admin === true && active !== false)
    .flatMap(({ user }) => parseReference(referenceIn(user)) ?? [])
    .filter(({ type }) => type === 'User')
  const users = await repository.readMany(system, ids)
  return users.flatMap((version) => {
    const email = version?.content === undefined ? undefined : parseVersion(version).email
    return typeof email === 'string' ? [email] : []
  })
}
