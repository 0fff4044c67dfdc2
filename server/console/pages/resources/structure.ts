/** The elements of a type, by the StructureDefinition that the service has of it. */
import type { Bundle, ElementDefinition, StructureDefinition, ValueSet } from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { medplum } from '../../session.ts'

export interface Element {
  /** `value[x]` has one of its types in place of the mark. */
  readonly name: string
  /** The path in the definition; those of elements below it begin with it. */
  readonly path: string
  readonly types: readonly string[]
  readonly isList: boolean
  readonly isRequired: boolean
  readonly valueSet: string | undefined
  readonly hint: string | undefined
}

const HIDDEN = [
  'id',
  'extension',
  'modifierExtension',
  'contained',
  'meta',
  'implicitRules',
  'text',
]

export function useStructure(type: string) {
  return useQuery({
    queryKey: ['structure', type],
    queryFn: async () => {
      const query = new URLSearchParams({ type, derivation: 'specialization', _count: '5' })
      const own = await medplum.get<Bundle<StructureDefinition>>(
        `fhir/R4/StructureDefinition?${query}`,
      )
      const named = `fhir/R4/StructureDefinition?name=${type}`
      const found = own.entry?.length ? own : await medplum.get<typeof own>(named)
      return found.entry?.[0]?.resource?.snapshot?.element ?? []
    },
    staleTime: Number.POSITIVE_INFINITY,
  })
}

/** The elements directly below a path. */
export function elementsBelow(
  definitions: readonly ElementDefinition[],
  path: string,
): readonly Element[] {
  return definitions.flatMap((definition) => {
    const own = definition.path ?? ''
    const name = own.slice(path.length + 1)
    const isBelow = own.startsWith(`${path}.`) && !name.includes('.')
    return isBelow && !HIDDEN.includes(name) ? [elementOf(definition, name)] : []
  })
}

function elementOf({ path = '', type, max, min, binding, short }: ElementDefinition, name: string) {
  return {
    name,
    path,
    types: type?.map(({ code }) => (code ?? '').replace(/^.*System\./, '')) ?? [],
    isList: max === '*',
    isRequired: (min ?? 0) > 0,
    valueSet: binding?.strength === 'required' ? binding.valueSet?.split('|')[0] : undefined,
    hint: short,
  }
}

/** The codes that an element may have; empty where the service cannot say. */
export function useCodes(valueSet: string | undefined) {
  return useQuery({
    queryKey: ['codes', valueSet],
    queryFn: async () => {
      const query = new URLSearchParams({ url: valueSet ?? '', count: '500' })
      const { expansion } = await medplum.get<ValueSet>(`fhir/R4/ValueSet/$expand?${query}`)
      return expansion?.contains?.map(({ code = '', display }) => ({
        value: code,
        label: display ? `${display} (${code})` : code,
      }))
    },
    enabled: valueSet !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
  })
}
