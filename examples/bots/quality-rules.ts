/** Input: `{ type, rules }` with FHIRPath rules by name. Answer: for each rule, the resources that violate it. */
import {
  type BotEvent,
  evalFhirPath,
  getReferenceString,
  type MedplumClient,
  parseSearchRequest,
} from '@medplum/core'
import type { Resource } from '@medplum/fhirtypes'

interface Rules {
  /** Which resources, as a search: `Patient?active=true`. */
  readonly search: string
  readonly rules: Readonly<Record<string, string>>
}

export async function handler(medplum: MedplumClient, event: BotEvent<Rules>) {
  const { search, rules } = event.input
  const { resourceType } = parseSearchRequest(search)
  const broken: Record<string, (string | undefined)[]> = {}
  for await (const page of medplum.searchResourcePages(resourceType, search.split('?')[1])) {
    for (const resource of page as Resource[]) {
      for (const [name, rule] of Object.entries(rules)) {
        if (evalFhirPath(rule, resource)[0] === true) continue
        broken[name] = [...(broken[name] ?? []), getReferenceString(resource)]
      }
    }
  }
  return broken
}
