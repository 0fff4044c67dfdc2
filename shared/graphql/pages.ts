/** Versions that were found → resources, some at a time. */

import type { Principal } from '../access/principal.ts'
import { textOf } from '../binary/attachments.ts'
import { parseJson } from '../fhir/json.ts'
import type { Resource } from '../fhir/resource.ts'
import type { SearchPage, Version } from '../store/rows/version.ts'
import type { GraphqlContext, ResourcePage } from './request-state.ts'

/** Short pages are at hand at once: a promise for each resource takes as long as its parsing. */
export function pageOf(context: GraphqlContext, { versions, ...page }: SearchPage): ResourcePage {
  if (versions.length <= SHORT_PAGE) {
    context.levels.spend(versions.length * RESOURCE_WORK)
    return { ...page, resources: versions.map((version) => parse(context, version)) }
  }
  const slots = versions.map(() => Promise.withResolvers<Resource>())
  void handOut(context, versions, slots)
  return { ...page, resources: slots.map(({ promise }) => promise) }
}

const SHORT_PAGE = 20

async function handOut(
  context: GraphqlContext,
  versions: readonly Version[],
  slots: readonly PromiseWithResolvers<Resource>[],
): Promise<void> {
  // Nobody may be listening yet when one of them fails.
  for (const { promise } of slots) promise.catch(() => undefined)
  for (const [i, version] of versions.entries()) {
    const slot = slots[i]
    try {
      const turn = context.levels.pace(RESOURCE_WORK)
      if (turn !== undefined) await turn
      slot?.resolve(parse(context, version))
    } catch (error) {
      slot?.reject(error)
    }
  }
}

/** A resource weighs as much as so many values of a list. */
const RESOURCE_WORK = 50

export function parse(context: GraphqlContext, version: Version): Resource {
  const { interaction, owners, found, keepsDecimals } = context
  const text = textOf(interaction, version)
  // Our own text, checked when it was written, and cut to what the Principal may see.
  const resource = (keepsDecimals ? parseJson(text) : JSON.parse(text)) as Resource
  owners.set(resource, resource)
  if (isSeenAlike(interaction.principal)) found.set(`${version.type}/${version.id}`, resource)
  return resource
}

/** Nothing that a search finds looks different, or is another resource, when it is read by its id. */
function isSeenAlike({ rules, isSuperAdmin, project }: Principal): boolean {
  return rules === undefined && !isSuperAdmin && (project.linked ?? []).length === 0
}
