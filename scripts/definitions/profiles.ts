/** Converts published profiles and extensions to the parts used by validation and clients. */
import type { ProfileLine, SnapshotLine } from '../../shared/fhir/definitions-data.ts'
import type { Definition } from './describe.ts'

const ELEMENT =
  /^(id|path|sliceName|min|max|type|slicing|constraint|binding|fixed[A-Z].*|pattern[A-Z].*)$/

const PROSE =
  /^(definition|comment|requirements|mapping|alias|example|isModifierReason|meaningWhenMissing|orderMeaning)$/

export function describeProfiles(structures: readonly Definition[]): ProfileLine[] {
  return selectProfiles(structures)
    .map(({ url, type, baseDefinition, differential }) => ({
      url,
      type,
      baseDefinition,
      differential: { element: (differential?.element ?? []).map(describeElement) },
    }))
    .sort((a, b) => (a.url < b.url ? -1 : 1))
}

export function describeSnapshots(structures: readonly Definition[]): SnapshotLine[] {
  return selectProfiles(structures)
    .map(({ snapshot, ...definition }) => ({
      url: definition.url,
      version: definition.version,
      name: definition.name,
      title: definition.title,
      status: definition.status,
      kind: definition.kind,
      abstract: definition.abstract,
      context: definition.context,
      type: definition.type,
      baseDefinition: definition.baseDefinition,
      derivation: definition.derivation,
      snapshot: { element: (snapshot?.element ?? []).map(withoutProse) },
    }))
    .sort((a, b) => (a.url < b.url ? -1 : 1))
}

function selectProfiles(structures: readonly Definition[]): Definition[] {
  return structures.filter(
    ({ kind, derivation }) => kind !== 'logical' && derivation === 'constraint',
  )
}

function withoutProse(element: object): object {
  return Object.fromEntries(Object.entries(element).filter(([name]) => !PROSE.test(name)))
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
