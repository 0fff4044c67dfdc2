/** The types that the service knows, and the search parameters of each, by its own statement. */
import type { CapabilityStatement, CapabilityStatementRestResource } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { medplum } from '../../session.ts'

export type TypeEntry = CapabilityStatementRestResource

export function useTypes() {
  return useQuery({
    queryKey: ['types'],
    queryFn: async () => {
      const { rest } = await medplum.get<CapabilityStatement>('fhir/R4/metadata')
      return rest?.[0]?.resource ?? []
    },
    staleTime: Number.POSITIVE_INFINITY,
  })
}

const COLUMNS: Readonly<Record<string, readonly string[]>> = {
  Patient: ['name', 'birthDate', 'gender'],
  Practitioner: ['name', 'telecom'],
  Observation: ['code', 'subject', 'value[x]', 'effective[x]'],
  Condition: ['code', 'subject', 'clinicalStatus'],
  Encounter: ['status', 'class', 'subject', 'period'],
  Bot: ['name', 'description'],
  Subscription: ['criteria', 'status'],
  AuditEvent: ['recorded', 'subtype', 'outcome', 'agent'],
}

/** The columns of a type that nobody has chosen columns for. */
export function usualColumns(type: string): readonly string[] {
  return COLUMNS[type] ?? ['name', 'status', 'code', 'subject']
}

/** `value[x]` is whatever the record has in its place. */
export function elementOf(record: object, name: string): unknown {
  if (!name.endsWith('[x]')) return Object.entries(record).find(([key]) => key === name)?.[1]
  const start = name.slice(0, -3)
  return Object.entries(record).find(([key]) => key.startsWith(start) && key !== start)?.[1]
}
