/** The elements of a type, by the StructureDefinition that the service has of it, and the codes they may have. */
import type {
  Bundle,
  ElementDefinition,
  StructureDefinition,
  ValueSet,
  ValueSetExpansionContains,
} from '@medplum/fhirtypes'
import { useQuery } from '@tanstack/react-query'
import { medplum } from '../../client/session.ts'

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

const HIDDEN = ['id', 'extension', 'modifierExtension', 'contained', 'meta', 'implicitRules']

export function isPrimitive({ types: [type = ''] }: Element): boolean {
  return /^[a-z]/.test(type) || type === 'String'
}

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

/** The elements directly below a path; `value[x]` is one for each of its types. */
export function elementsBelow(
  definitions: readonly ElementDefinition[],
  path: string,
): readonly Element[] {
  return definitions.flatMap((definition) => {
    const own = definition.path ?? ''
    const name = own.slice(path.length + 1)
    const isBelow = own.startsWith(`${path}.`) && !name.includes('.')
    if (!isBelow || HIDDEN.includes(name)) return []
    const element = toElement(definition, name)
    // A narrative is written by programs.
    return element.types.includes('Narrative') ? [] : expandChoices(element)
  })
}

function toElement(
  { path = '', type, max, min, binding, short }: ElementDefinition,
  name: string,
): Element {
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

function expandChoices(element: Element): readonly Element[] {
  if (!element.name.endsWith('[x]')) return [element]
  return element.types.map((type) => ({
    ...element,
    name: element.name.slice(0, -3) + type.charAt(0).toUpperCase() + type.slice(1),
    types: [type],
    isRequired: false,
  }))
}

const MOST_CODES = 500

/** The codes that an element may have; empty where the service does not list all of them. */
export function useCodes(valueSet: string | undefined) {
  return useQuery({
    queryKey: ['codes', valueSet],
    queryFn: async () => {
      const query = new URLSearchParams({ url: valueSet ?? '', count: String(MOST_CODES) })
      const { expansion } = await medplum.get<ValueSet>(`fhir/R4/ValueSet/$expand?${query}`)
      const codes = codesIn(expansion?.contains ?? [])
      return (expansion?.total ?? 0) > MOST_CODES || codes.length >= MOST_CODES ? [] : codes
    },
    enabled: valueSet !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
  })
}

interface Code {
  readonly value: string
  readonly label: string
}

function codesIn(contains: readonly ValueSetExpansionContains[]): readonly Code[] {
  return contains.flatMap(({ code = '', display, contains: below = [] }) => [
    ...(code === '' ? [] : [{ value: code, label: display ? `${display} (${code})` : code }]),
    ...codesIn(below),
  ])
}
