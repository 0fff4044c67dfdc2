/** Pre-commit bots run before a transaction opens; if a target differs inside, the transaction fails. */
import { RaceLost } from '../../core/errors.ts'
import type { Resource } from '../../fhir/resource.ts'
import { writeOptions } from '../../request/reply.ts'
import type { FhirContext } from '../../request/request.ts'
import { isOfSocket } from '../../subscriptions/socket-subscriptions.ts'
import { mayAskBots } from '../interaction.ts'
import { beforeDelete, beforeWrite, dryRunPatch } from '../pre-commit.ts'
import { acceptNew, acceptUpdate, patchedBy } from '../write.ts'
import type { Entry, EntryPlan } from './entries.ts'
import { identify, replaceLinks, requireDistinct, type Step } from './identities.ts'
import { entryInteraction, readEntryPatch, requireEntryResource, throwIfCancelled } from './run.ts'

export interface PreCommittedPlans {
  readonly plans: readonly EntryPlan[]
  /** Errors: 409 when an entry's target differs from the one that bots saw. */
  check(steps: readonly Step[]): void
}

/** `failed` receives the entry of an error. Errors: those of the entries and of the bots. */
export async function runPreCommitBots(
  context: FhirContext,
  plans: readonly EntryPlan[],
  failed: (index: number, error: unknown) => unknown,
): Promise<PreCommittedPlans> {
  if (!mayAskBots(context)) return { plans, check: () => undefined }
  const steps = await identify(context, plans, ({ index }, error) => {
    throw failed(index, error)
  })
  requireDistinct(steps)
  const asked: EntryPlan[] = []
  for (const [i, plan] of plans.entries()) {
    const step = steps[i]
    if (step === undefined) throw new Error('A plan of a transaction has no step')
    throwIfCancelled(context)
    const entry = await askAbout(context, step).catch((error: unknown) => {
      throw failed(plan.entry.index, error)
    })
    const { identity } = step
    asked.push({ ...plan, entry, ...(identity?.isNew ? { id: identity.id } : {}) })
  }
  const meant = identityKey(steps)
  return {
    plans: asked,
    check(inside) {
      if (identityKey(inside) !== meant) throw new RaceLost()
    },
  }
}

function identityKey(steps: readonly Step[]): string {
  return JSON.stringify(
    steps.map(({ identity, matches }) => [identity?.id, matches.map(({ id }) => id)]),
  )
}

async function askAbout(outer: FhirContext, step: Step): Promise<Entry> {
  const { entry, identity, identities, isTwin, matches } = step
  const { route } = entry
  const context = entryInteraction(outer, step)
  const options = writeOptions(context.request)
  if (route.kind === 'delete' || route.kind === 'conditional-delete') {
    const deleted = route.kind === 'delete' ? [route] : matches
    for (const { type, id } of deleted) await beforeDelete(context, type, id, options.ifMatch)
    return entry
  }
  if (identity === undefined || isTwin) return entry
  const { type, id, isNew } = identity
  const body = replaceLinks(requireEntryResource(entry), identities)
  switch (route.kind) {
    case 'create':
    case 'conditional-update': {
      if (isNew) return askAboutNew(context, entry, id, body)
      return route.kind === 'create' ? entry : askAboutNext(context, entry, { ...body, id })
    }
    case 'update':
      return askAboutNext(context, entry, body)
    case 'patch':
    case 'conditional-patch': {
      const change = patchedBy(context, type, replaceLinks(readEntryPatch(body, entry), identities))
      const { resource, ver } = await dryRunPatch(context, { type, id, apply: change, options })
      const sent = { ...resource, id }
      const next = await beforeWrite(context, 'update', sent, [ver])
      if (next === sent) return entry
      return {
        ...entry,
        method: 'PUT',
        path: `${type}/${id}`,
        query: new URLSearchParams(),
        route: { kind: 'update', type, id },
        resource: next,
        headers: { ...entry.headers, 'if-match': `W/"${ver}"` },
      }
    }
    default:
      return entry
  }
}

async function askAboutNew(
  context: FhirContext,
  entry: Entry,
  id: string,
  body: Resource,
): Promise<Entry> {
  const { resource } = await acceptNew(context, body.resourceType, body)
  if (isOfSocket(resource)) return entry
  const sent = { ...resource, id }
  const next = await beforeWrite(context, 'create', sent)
  if (next === sent) return entry
  // The id is the entry's own, or generated.
  const { id: _id, ...rest } = next
  return { ...entry, resource: body.id === undefined ? rest : { ...rest, id: body.id } }
}

async function askAboutNext(context: FhirContext, entry: Entry, body: Resource): Promise<Entry> {
  const { resourceType: type, id = '' } = body
  const { resource } = await acceptUpdate(context, type, id, body)
  const { ifMatch } = writeOptions(context.request)
  const next = await beforeWrite(context, 'update', resource, ifMatch)
  return next === resource ? entry : { ...entry, resource: next }
}
