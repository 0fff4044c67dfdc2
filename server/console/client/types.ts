/** The resource types of the service. */
import type { CapabilityStatement, CapabilityStatementRestResource } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { medplum } from './session.ts'

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
