/** Where definitions of a Project are found: https://hl7.org/fhir/R4/references.html#canonical-resolution */
import type { ProjectContext } from '../access/principal.ts'
import type { Principals } from './principals.ts'

/** The Project, then those it links to that share the type. */
export async function withLinked(
  principals: Principals,
  project: ProjectContext,
  type: string,
): Promise<readonly ProjectContext[]> {
  const linked = await Promise.all((project.links ?? []).map((id) => principals.project(id)))
  const shared = linked.flatMap((item) => {
    const { exports = [] } = item ?? {}
    return item !== undefined && (exports.length === 0 || exports.includes(type)) ? [item] : []
  })
  return [project, ...shared]
}
