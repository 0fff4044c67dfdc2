/** Which types refer to which, by which of their parameters. https://hl7.org/fhir/R4/graphql.html#reverse */
import { resourceTypes, searchParameters } from '../../fhir/definitions.ts'
import { openOnce } from '../../fhir/definitions-lines.ts'

export interface Referring {
  readonly type: string
  /** Parameters that can point at the target. */
  readonly codes: readonly string[]
  /** One of them names the target; else they point at anything. */
  readonly isNamed: boolean
}

/** Types with a reference parameter that can point at `target`. */
export function referringTo(target: string): readonly Referring[] {
  return holders().flatMap(({ type, parameters }) => {
    const apt = parameters.filter(({ targets }) => targets?.includes(target) ?? true)
    if (apt.length === 0) return []
    const isNamed = apt.some(({ targets }) => targets !== undefined)
    return [{ type, codes: apt.map(({ code }) => code), isNamed }]
  })
}

const holders = openOnce(() =>
  resourceTypes
    .filter((type) => type !== 'Binary')
    .map((type) => ({
      type,
      parameters: [...searchParameters(type).values()].filter(
        ({ type: kind, code }) => kind === 'reference' && !code.startsWith('_'),
      ),
    })),
)
