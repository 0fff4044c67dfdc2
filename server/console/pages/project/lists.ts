/** The lists of a project, which the service replaces as a whole. */
import type { ProjectSetting, ProjectSite } from '@medplum/fhirtypes'
import { medplum } from '../../client/session.ts'

interface Lists {
  readonly secret: ProjectSetting
  readonly setting: ProjectSetting
  readonly site: ProjectSite
}

const PATHS = { secret: 'secrets', setting: 'settings', site: 'sites' } as const

interface Answer {
  readonly project: { readonly [N in keyof Lists]?: readonly Lists[N][] }
}

/**
 * Changes the list as it is now: others may have changed it since the page was opened. Errors: 412 if the project
 * changes at the same moment.
 */
export async function changeList<N extends keyof Lists>(
  address: string,
  name: N,
  change: (items: readonly Lists[N][]) => readonly Lists[N][],
): Promise<unknown> {
  const answer = await medplum.get(address, { cache: 'no-store' })
  const headers = { 'If-Match': `W/"${answer.project.meta.versionId}"` }
  const { project }: Answer = answer
  const items = change(project[name] ?? [])
  return await medplum.post(`${address}/${PATHS[name]}`, items, undefined, { headers })
}

/** Puts items in place of those of the same names. */
export function withItems<T extends { readonly name?: string }>(
  items: readonly T[],
  names: readonly string[],
  next: readonly T[],
): readonly T[] {
  return [...items.filter(({ name = '' }) => !names.includes(name)), ...next]
}
