/** Required bindings to value sets whose codes are in the definitions. https://hl7.org/fhir/R4/terminologies.html#strength */
import { valueSet } from './definitions.ts'
import { isObject } from './resource.ts'

/** What is wrong with a code, Coding, CodeableConcept or Quantity; undefined when nothing is, or nobody knows. */
export function bindingFault(value: unknown, canonical: string): string | undefined {
  const url = canonical.replace(/\|.*$/, '')
  const systems = valueSet(url)?.systems
  if (systems === undefined) return undefined
  const codings = codingsOf(value)
  if (codings.length === 0 || codings.some((coding) => isListed(coding, systems))) return undefined
  const found = codings.map(({ system, code }) =>
    system === undefined ? code : `${system}|${code}`,
  )
  return `Value ${JSON.stringify(found.join(', '))} did not satisfy terminology binding ${url}`
}

interface Code {
  readonly system: string | undefined
  readonly code: string
}

function codingsOf(value: unknown): readonly Code[] {
  if (typeof value === 'string') return [{ system: undefined, code: value }]
  if (!isObject(value)) return []
  if (Array.isArray(value.coding)) return value.coding.flatMap(codingsOf)
  const { system, code } = value
  if (typeof code !== 'string') return []
  return [{ system: typeof system === 'string' ? system : undefined, code }]
}

function isListed(
  { system, code }: Code,
  systems: Readonly<Record<string, readonly string[]>>,
): boolean {
  if (system !== undefined)
    return Object.hasOwn(systems, system) && systems[system]?.includes(code) === true
  return Object.values(systems).some((codes) => codes.includes(code))
}
