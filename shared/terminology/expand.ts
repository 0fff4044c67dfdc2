/** `ValueSet/$expand`: https://hl7.org/fhir/R4/valueset-operation-expand.html */
import { randomUUID } from 'node:crypto'
import { isOverridable, resolvedIn } from '../access/guarded/definitions.ts'
import { may } from '../access/policy.ts'
import { badRequest, forbidden } from '../core/errors.ts'
import { plainBundle } from '../fhir/bundle.ts'
import { publishedIdentity, publishedStructure } from '../fhir/published.ts'
import { canonicalUrl, isObject, type Meta } from '../fhir/resource.ts'
import type { Designation, ValueSet } from '../fhir/terminology.ts'
import { versionText } from '../request/binary/attachments.ts'
import {
  type Inputs,
  type ParameterDefinition,
  readInputs,
  toInteraction,
} from '../request/parameters.ts'
import { absoluteUrl, jsonReply, textReply } from '../request/reply.ts'
import type { Operation, OperationCall } from '../request/request.ts'
import { escapeValue } from '../search/language/values.ts'
import { findVersions } from '../store/lookups.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { profilesNamedIn } from '../validation/profiles/profiles.ts'
import { isStructureDefinition, type StructureDefinition } from '../validation/profiles/tree.ts'
import {
  displayLanguages,
  isOfLanguage,
  preferredDisplay,
  SUPPLEMENTS,
  VERSIONS,
  withForcedVersions,
  withRequestedVersions,
  withSupplements,
} from './adjusted.ts'
import {
  definitionNotFound,
  ownResource,
  terminologyOperation,
  texts,
  validateSent,
} from './codes.ts'
import { linkedReaders, type Terminology } from './find.ts'
import { evaluation } from './members.ts'
import { type Code, expandValueSet } from './terminology-expand.ts'

const MAX_COUNT = 1000
const FILTERED_COUNT = 10
const MAX_OFFSET = 10_000

const PARAMETERS: readonly ParameterDefinition[] = [
  ...texts('url', 'valueSetVersion', 'filter', 'displayLanguage'),
  ...SUPPLEMENTS,
  ...VERSIONS,
  { name: 'valueSet', kind: 'resource' },
  { name: 'offset', kind: 'whole' },
  { name: 'count', kind: 'whole' },
  { name: 'excludeNotForUI', kind: 'flag' },
  { name: 'activeOnly', kind: 'flag' },
  // Expansions are always flat lists of defined codes, regardless of these two.
  { name: 'excludeNested', kind: 'flag' },
  { name: 'excludePostCoordinated', kind: 'flag' },
  { name: 'includeDesignations', kind: 'flag' },
  { name: 'includeDefinition', kind: 'flag' },
  { name: 'designation', kind: 'text', many: true },
]

export const expand = terminologyOperation(
  'expand',
  ['ValueSet'],
  () => PARAMETERS,
  async ({ call, inputs, terminology: found }) => {
    const asked = withRequestedVersions(found, inputs)
    const text = inputs.text('filter')
    const offset = readNonNegative(inputs, 'offset', 0, MAX_OFFSET)
    const count = readNonNegative(inputs, 'count', text === undefined ? MAX_COUNT : FILTERED_COUNT)
    const valueSet = withForcedVersions(await requireValueSet(call, asked, inputs), inputs)
    const terminology = await withSupplements(asked, inputs, valueSet)
    const languages = displayLanguages(call, inputs, valueSet)
    const wish = { text, activeOnly: inputs.flag('activeOnly') === true, needed: offset + count }
    const { codes, isCut } = await expandValueSet(evaluation(terminology), valueSet, wish)
    const shown = inputs.flag('excludeNotForUI') ? codes.filter((code) => !code.isAbstract) : codes
    const page = shown.slice(offset, offset + Math.min(count, MAX_COUNT))
    return jsonReply(200, {
      resourceType: 'ValueSet',
      ...valueSet,
      ...('status' in valueSet ? {} : { status: 'active' }),
      compose: inputs.flag('includeDefinition') ? valueSet.compose : undefined,
      meta: valueSet.meta && publicMeta(valueSet.meta),
      expansion: {
        identifier: `urn:uuid:${randomUUID()}`,
        timestamp: new Date().toISOString(),
        ...(isCut ? {} : { total: shown.length }),
        offset,
        ...expansionParameters(inputs, page),
        ...(page.length === 0
          ? {}
          : { contains: page.map((code) => contained(code, languages, inputs)) }),
      },
    })
  },
)

function publicMeta({ versionId, lastUpdated }: Meta): object {
  return { versionId, lastUpdated }
}

function readNonNegative(inputs: Inputs, name: string, otherwise: number, most?: number): number {
  const value = inputs.whole(name) ?? otherwise
  if (value < 0) throw badRequest(`"${name}" must not be negative`)
  if (most !== undefined && value > most) throw badRequest(`"${name}" must be at most ${most}`)
  return Math.min(value, most ?? MAX_COUNT)
}

/** Errors: 400 when none is named, 404 when absent. */
export async function requireValueSet(
  call: OperationCall,
  terminology: Terminology,
  inputs: Inputs,
): Promise<ValueSet> {
  const sent = inputs.resource('valueSet')
  const resource = (await ownResource(call)) ?? (sent && validateSent('ValueSet', sent))
  if (resource !== undefined) return resource as unknown as ValueSet
  const url = inputs.text('url')
  if (url === undefined) throw badRequest('Missing required parameter "url"')
  const implicit = /^([^?]+)\?fhir_vs(?:=isa\/(.+))?$/.exec(url)
  if (implicit !== null) return implicitValueSet(url, implicit[1], implicit[2])
  const version = inputs.text('valueSetVersion')
  const canonical = version === undefined ? url : `${url}|${version}`
  const found = await terminology.valueSet(canonical)
  if (found === undefined) throw definitionNotFound('ValueSet', canonical)
  return found.meta === undefined ? { ...found, ...publishedIdentity(found.url) } : found
}

/** Returns all codes of a system, or below one: https://hl7.org/fhir/R4/snomedct.html#implicit */
function implicitValueSet(url: string, system = '', root: string | undefined): ValueSet {
  const filter = root === undefined ? {} : { filter: [isA(root)] }
  return { url, compose: { include: [{ system, ...filter }] } }
}

function isA(value: string) {
  return { property: 'concept', op: 'is-a', value }
}

function expansionParameters(inputs: Inputs, codes: readonly Code[]): object {
  const texts = ['filter', 'displayLanguage'].flatMap((name) => {
    const value = inputs.text(name)
    return value === undefined ? [] : [{ name, valueString: value }]
  })
  const wholes = ['count', 'offset'].flatMap((name) => {
    const value = inputs.whole(name)
    return value === undefined ? [] : [{ name, valueInteger: value }]
  })
  const used = codes.flatMap(({ system, version }) => (version ? `${system}|${version}` : []))
  const versions = [...new Set(used)].map((valueUri) => ({ name: 'version', valueUri }))
  const parameter = [...texts, ...wholes, ...versions]
  return parameter.length === 0 ? {} : { parameter }
}

function contained(code: Code, languages: readonly string[], inputs: Inputs): object {
  const display = preferredDisplay(languages, code)
  const wanted = inputs.texts('designation')
  const designation = inputs.flag('includeDesignations')
    ? code.designations.filter((item) => wanted.length === 0 || wanted.some(names(item)))
    : []
  return {
    system: code.system,
    ...(code.isAbstract ? { abstract: true } : {}),
    ...(code.isInactive ? { inactive: true } : {}),
    code: code.code,
    ...(display === undefined ? {} : { display }),
    ...(designation.length === 0 ? {} : { designation }),
  }
}

/** Returns a test for parameter `designation`: the code of a use or a language. */
function names(designation: Designation) {
  const { use } = designation
  const [system, code] = isObject(use) ? [use.system, use.code] : []
  return (token: string): boolean => {
    const bar = token.lastIndexOf('|')
    const value = token.slice(bar + 1)
    const scope = bar < 0 ? undefined : token.slice(0, bar)
    if (scope === LANGUAGES) return isOfLanguage(designation.language, value)
    return code === value && (scope === undefined || scope === system)
  }
}

const LANGUAGES = 'urn:ietf:bcp:47'

/** Limit on profiles per response, and on chain length. */
const MOST_PROFILES = 300
const CANDIDATES = 50
const MAX_ROUNDS = 10

/** Returns the caller's profiles and the standard's; unknown ones are omitted. Errors: 400, 403, 404. */
export const expandProfile: Operation = {
  name: 'expand-profile',
  on: [{ type: 'StructureDefinition', level: 'type' }],
  methods: ['GET', 'POST'],
  onlyReads: true,
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
    if (!found.has(url)) throw definitionNotFound('StructureDefinition', url)
    const distinct = new Map([...found.values()].map(({ entry }) => [entry.fullUrl, entry]))
    return textReply(200, plainBundle('searchset', [...distinct.values()]))
  },
}

interface Found {
  readonly definition: StructureDefinition
  readonly entry: { readonly fullUrl: string; readonly resource: string }
}

/** Searches each sharing Project, the caller's first, then the standard. */
async function readAll(
  call: OperationCall,
  canonicals: readonly string[],
): Promise<ReadonlyMap<string, Found>> {
  const { services, principal } = call
  const context = toInteraction(call)
  const found = new Map<string, Found>()
  for (const reader of await linkedReaders(services, principal, 'StructureDefinition')) {
    const missing = canonicals.filter((name) => isOverridable(found.get(name)?.definition))
    if (missing.length === 0) break
    const values = [...new Set(missing.map((name) => escapeValue(canonicalUrl(name))))]
    const condition = { code: 'url', type: 'uri', modifier: undefined, values } as const
    const { repository } = services
    const versions = await findVersions(repository, reader, 'StructureDefinition', {
      conditions: [condition],
      count: CANDIDATES * values.length,
    })
    const read = versions.flatMap((version): Found[] => {
      const definition: unknown = parseVersion(version)
      if (!isStructureDefinition(definition)) return []
      const fullUrl = absoluteUrl(services, `${version.type}/${version.id}`)
      return [{ definition, entry: { fullUrl, resource: versionText(context, version) } }]
    })
    for (const name of missing) {
      const definition = resolvedIn(
        read.map((item) => item.definition),
        name,
      )
      const item = read.find((candidate) => candidate.definition === definition)
      if (item === undefined || (found.has(name) && isOverridable(item.definition))) continue
      found.set(name, item)
    }
  }
  for (const name of canonicals) {
    const isMissing = isOverridable(found.get(name)?.definition)
    const definition: unknown = isMissing ? publishedStructure(name) : undefined
    if (!isStructureDefinition(definition)) continue
    const fullUrl = absoluteUrl(
      services,
      `StructureDefinition/${publishedIdentity(definition.url).id}`,
    )
    const entry = { fullUrl, resource: JSON.stringify(definition) }
    found.set(name, { definition, entry })
  }
  return found
}
