/** `$expand-profile`: a profile and the others that it needs, in one Bundle. */
import { may } from '../../access/policy.ts'
import { forbidden, notFound } from '../../errors.ts'
import { plainBundle } from '../../fhir/bundle.ts'
import { chosen, urlOf } from '../../fhir/canonical.ts'
import { isStructureDefinition, type StructureDefinition } from '../../fhir/profile-tree.ts'
import { profilesNamedIn } from '../../fhir/profiles.ts'
import { escapeValue } from '../../fhir/search-values.ts'
import { findVersions } from '../../store/lookups.ts'
import type { Version } from '../../store/repository.ts'
import { parseVersion } from '../../store/rows.ts'
import { absoluteUrl, textOf } from '../interaction.ts'
import type { Operation, OperationCall } from '../operation.ts'
import { textReply } from '../reply.ts'
import { readersOf } from '../terminology/find.ts'
import { interactionOf } from './output.ts'
import { readInputs } from './parameters.ts'

/** Profiles of one answer, and how long a chain of them may be. */
const MOST_PROFILES = 300
const MAX_ROUNDS = 10

/** Those that nobody has, or that the standard publishes, are left out. Errors: 400, 403, 404. */
export const expandProfile: Operation = {
  name: 'expand-profile',
  on: [{ type: 'StructureDefinition', level: 'type' }],
  methods: ['GET', 'POST'],
  async run(call) {
    const { services, principal } = call
    if (!may(principal, 'StructureDefinition', 'search')) throw forbidden()
    const url = readInputs(call, [{ name: 'url', kind: 'text' }]).required('url')
    const found = new Map<string, Version>()
    let wanted: readonly string[] = [url]
    for (let round = 0; round < MAX_ROUNDS && wanted.length > 0; round++) {
      const read = await readAll(call, wanted)
      for (const [name, { version }] of read) found.set(name, version)
      const named = new Set([...read.values()].flatMap((item) => profilesNamedIn(item.definition)))
      const left = MOST_PROFILES - found.size
      wanted = [...named].filter((name) => !found.has(name)).slice(0, left)
    }
    if (!found.has(url)) throw notFound()
    const interaction = interactionOf(call)
    const distinct = new Map([...found.values()].map((item) => [`${item.type}/${item.id}`, item]))
    const entries = [...distinct].map(([name, version]) => ({
      fullUrl: absoluteUrl(services, name),
      resource: textOf(interaction, version),
    }))
    return textReply(200, plainBundle('searchset', entries))
  },
}

interface Read {
  readonly version: Version
  readonly definition: StructureDefinition
}

/** One search in each Project that shares its definitions, the caller's own first. */
async function readAll(
  { services, principal }: OperationCall,
  canonicals: readonly string[],
): Promise<ReadonlyMap<string, Read>> {
  const found = new Map<string, Read>()
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
    const read = versions.flatMap((version): Read[] => {
      const definition: unknown = parseVersion(version)
      return isStructureDefinition(definition) ? [{ version, definition }] : []
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
  return found
}
