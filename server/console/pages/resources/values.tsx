/** Display of record types and elements. */
import {
  formatAddress,
  formatCodeableConcept,
  formatHumanName,
  formatQuantity,
  isObject,
} from '@medplum/core'
import type { CapabilityStatement, CapabilityStatementRestResource } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { Link } from 'wouter'
import { medplum } from '../../client/session.ts'
import { When } from '../../parts/when.tsx'

const MOST_ITEMS = 3

interface Props {
  readonly value: unknown
}

export function Value({ value }: Props) {
  if (value === undefined || value === null) return null
  if (Array.isArray(value)) {
    return value.slice(0, MOST_ITEMS).map((item: unknown) => (
      <span key={JSON.stringify(item)} className="item">
        <Value value={item} />
      </span>
    ))
  }
  if (typeof value === 'string' && /^\d{4}-\d\d-\d\dT/.test(value)) return <When at={value} />
  if (!isObject(value)) return <>{String(value)}</>
  const { reference, display } = value
  if (typeof reference !== 'string') return <>{formatComplexValue(value)}</>
  const text = typeof display === 'string' ? display : reference
  return /^[A-Z]\w+\/[\w.-]+$/.test(reference) ? (
    <Link href={`/resources/${reference}`}>{text}</Link>
  ) : (
    text
  )
}

function formatComplexValue(value: Record<string, unknown>): string {
  if ('family' in value || 'given' in value) return formatHumanName(value)
  if ('coding' in value || ('text' in value && !('status' in value))) {
    return formatCodeableConcept(value)
  }
  if ('line' in value || 'city' in value) return formatAddress(value)
  if ('unit' in value) return formatQuantity(value)
  const first = value.display ?? value.value ?? value.code ?? value.start
  return first === undefined ? JSON.stringify(value).slice(0, 80) : String(first)
}

export type TypeEntry = CapabilityStatementRestResource

/** Returns the types and search parameters of the CapabilityStatement. */
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

export function usualColumns(type: string): readonly string[] {
  return COLUMNS[type] ?? ['name', 'status', 'code', 'subject']
}

export function readElement(record: object, name: string): unknown {
  if (!name.endsWith('[x]')) return Object.entries(record).find(([key]) => key === name)?.[1]
  const start = name.slice(0, -3)
  return Object.entries(record).find(([key]) => key.startsWith(start) && key !== start)?.[1]
}
