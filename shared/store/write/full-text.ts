/** Which Projects and types keep the words of their resources, and the rows that hold them. */
import { REGISTRY_TYPES } from '../../access/policy.ts'
import { settingOf } from '../../access/project-context.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Resource } from '../../fhir/resource.ts'
import { type ResourceText, textOfResource } from '../../fhir/resource-text.ts'

/** Nobody may search all of the content of these: they hold secrets. */
const SECRETIVE: ReadonlySet<string> = new Set(['Binary', 'ClientApplication', 'Subscription'])

/** Names the state of a Project's texts among those of its parameters, with the version that began it. */
export const FULL_TEXT_ID = '00000000-0000-0000-0000-000000000000'

export function hasFullText(type: string): boolean {
  return !REGISTRY_TYPES.has(type) && !SECRETIVE.has(type)
}

/** `Project.setting` `fullTextSearch`. */
export function wantsFullText(project: Resource | undefined): boolean {
  return (
    project !== undefined && settingOf(project.setting, 'fullTextSearch')?.valueBoolean === true
  )
}

/** Undefined where its Project keeps none, or `stored` says the same. */
export function newText(
  own: OwnParameters | undefined,
  resource: Resource,
  stored?: Resource,
): ResourceText | undefined {
  if (own?.fullText === undefined || !hasFullText(resource.resourceType)) return undefined
  const text = textOfResource(resource)
  // While they are indexed the row may not be there yet, and the index passes by what changes.
  if (stored === undefined || own.fullText === 'indexing') return text
  const before = textOfResource(stored)
  const isSame = before.narrative === text.narrative && before.content === text.content
  return isSame ? undefined : text
}

/** The lexemes of a text, and the one of its Project and type; all in SQL. */
export function lexemesSql(text: string, project: string, type: string): string {
  return `array_to_tsvector(array[${markSql(project, type)}]) || to_tsvector('simple', ${text})`
}

/** The lexeme of a Project and type, in SQL; no word of a text looks like it. */
export function markSql(project: string, type: string): string {
  return `'#' || ${project} || '.' || ${type}`
}
