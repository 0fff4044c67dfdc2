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
  const { byTarget, toAny } = parameters()
  const named = byTarget.get(target)
  return [...new Set([...(named?.keys() ?? []), ...toAny.keys()])].map((type) => {
    const codes = [...(named?.get(type) ?? []), ...(toAny.get(type) ?? [])]
    return { type, codes, isNamed: named?.has(type) === true }
  })
}

type Codes = Map<string, string[]>

/** Referring type → codes, for each target and for parameters that can point at any. */
const parameters = openOnce(() => {
  const byTarget = new Map<string, Codes>()
  const toAny: Codes = new Map()
  for (const type of resourceTypes) {
    if (type === 'Binary') continue
    for (const { type: kind, code, targets } of searchParameters(type).values()) {
      if (kind !== 'reference' || code.startsWith('_')) continue
      if (targets === undefined) add(toAny, type, code)
      for (const target of targets ?? []) {
        const codes = byTarget.get(target) ?? new Map()
        byTarget.set(target, codes)
        add(codes, type, code)
      }
    }
  }
  return { byTarget, toAny }
})

function add(codes: Codes, type: string, code: string): void {
  const known = codes.get(type)
  if (known === undefined) codes.set(type, [code])
  else known.push(code)
}
