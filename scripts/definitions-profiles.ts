/** Published profiles and extensions → what of them a validator reads. */
import type { ProfileLine } from '../shared/fhir/definitions-data.ts'
import type { Definition } from './definitions-describe.ts'

const ELEMENT =
  /^(id|path|sliceName|min|max|type|slicing|constraint|binding|fixed[A-Z].*|pattern[A-Z].*)$/

export function describeProfiles(structures: readonly Definition[]): ProfileLine[] {
  return structures
    .filter(({ kind, derivation }) => kind !== 'logical' && derivation === 'constraint')
    .map(({ url, type, baseDefinition, differential }) => ({
      url,
      type,
      baseDefinition,
      differential: { element: (differential?.element ?? []).map(describeElement) },
    }))
    .sort((a, b) => (a.url < b.url ? -1 : 1))
}

function describeElement(element: object): object {
  const kept = Object.entries(element).filter(([name]) => ELEMENT.test(name))
  return Object.fromEntries(kept.map(([name, value]) => [name, describeMember(name, value)]))
}

function describeMember(name: string, value: unknown): unknown {
  if (name !== 'constraint') return value
  // ElementDefinition.constraint is a list of objects.
  return (value as { key: string; severity: string; human: string; expression?: string }[])
    .filter(({ severity }) => severity === 'error')
    .map(({ key, human, expression }) => ({ key, severity: 'error', human, expression }))
}
