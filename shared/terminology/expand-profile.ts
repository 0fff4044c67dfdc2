/** `$expand-profile`: a profile and the others that it needs, in one Bundle. */
import { may } from '../access/policy.ts'
import { textOf } from '../binary/attachments.ts'
import { forbidden, notFound } from '../errors.ts'
import { plainBundle } from '../fhir/bundle.ts'
import { publishedStructure } from '../fhir/published.ts'
import { chosen, urlOf } from '../fhir/resource.ts'
import { escapeValue } from '../query/values.ts'
import type { Operation, OperationCall } from '../request/operation.ts'
import { interactionOf } from '../request/output.ts'
import { readInputs } from '../request/parameters.ts'
import { absoluteUrl, textReply } from '../request/reply.ts'
import { findVersions } from '../store/rows/lookups.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { profilesNamedIn } from '../validation/profiles/profiles.ts'
import { isStructureDefinition, type StructureDefinition } from '../validation/profiles/tree.ts'
import { readersOf } from './find.ts'

/** Profiles of one answer, and how long a chain of them may be. */
const MOST_PROFILES = 300
const MAX_ROUNDS = 10

/** The caller's own and those that the standard publishes; what nobody has is left out. Errors: 400, 403, 404. */
export const expandProfile: Operation = {
  name: 'expand-profile',
  on: [{ type: 'StructureDefinition', level: 'type' }],
  methods: ['GET', 'POST'],
  async run(call) {
    if (!may(call.principal, 'StructureDefinition', 'search')) throw forbidden()
    const url = readInputs(call, [{ name: 'url', kind: 'text' }]).required('url')
    const found = new Map<string, Found>()
    let wanted: readonly string[] = [url]
    for (let round = 0; round < MAX_ROUNDS && wanted.length > 0; round++) {
      const read = await readAll(call, wanted)
      for (const [name, item] of read) found.set(name, item)
      const named = new Set([...read.values()].flatMap((item) => profilesNamedIn(item.definition)))
      const left = MOST_PROFILES - found.size
      wanted = [...named].filter((name) => !found.has(name)).slice(0, left)
    }
    if (!found.has(url)) throw notFound()
    const distinct = new Map([...found.values()].map(({ entry }) => [entry.fullUrl, entry]))
    return textReply(200, plainBundle('searchset', [...distinct.values()]))
  },
}

interface Found {
  readonly definition: StructureDefinition
  readonly entry: { readonly fullUrl: string; readonly resource: string }
}

/** One search in each Project that shares its definitions, the caller's own first; then the standard. */
async function readAll(
  call: OperationCall,
  canonicals: readonly string[],
): Promise<ReadonlyMap<string, Found>> {
  const { services, principal } = call
  const interaction = interactionOf(call)
  const found = new Map<string, Found>()
  for (const reader of await readersOf(services, principal, 'StructureDefinition')) {
    const missing = canonicals.filter((name) => !found.has(name))
    if (missing.length === 0) break
    const values = [...new Set(missing.map((name) => escapeValue(urlOf(name))))]
    const condition = { code: 'url', type: 'uri', modifier: undefined, values } as const
    const { repository } = services
    const count = MOST_PROFILES
    const versions = await findVersions(
      repository,
      reader,
      'StructureDefinition',
      [condition],
      count,
    )
    const read = versions.flatMap((version): Found[] => {
      const definition: unknown = parseVersion(version)
      if (!isStructureDefinition(definition)) return []
      const fullUrl = absoluteUrl(services, `${version.type}/${version.id}`)
      return [{ definition, entry: { fullUrl, resource: textOf(interaction, version) } }]
    })
    for (const name of missing) {
      const definition = chosen(
        read.map((item) => item.definition),
        name,
      )
      const item = read.find((candidate) => candidate.definition === definition)
      if (item !== undefined) found.set(name, item)
    }
  }
  for (const name of canonicals) {
    const definition: unknown = found.has(name) ? undefined : publishedStructure(name)
    if (!isStructureDefinition(definition)) continue
    const entry = { fullUrl: definition.url, resource: JSON.stringify(definition) }
    found.set(name, { definition, entry })
  }
  return found
}
