/** `ConceptMap/$translate`: https://hl7.org/fhir/R4/conceptmap-operation-translate.html */
import { badRequest, tooCostly } from '../../core/errors.ts'
import { isObject } from '../../fhir/resource.ts'
import type { ConceptMap, Dependency, MapGroup } from '../../fhir/terminology.ts'
import { type Inputs, type Output, parametersReply } from '../../request/parameters.ts'
import type { OperationCall } from '../../request/request.ts'
import {
  CODE_INPUTS,
  definitionNotFound,
  fromCoding,
  type GivenCode,
  givenCodes,
  ownResource,
  terminologyOperation,
  validateSent,
} from '../../terminology/codes.ts'
import { type FoundMap, findMaps, foundMap, type Terminology } from '../../terminology/find.ts'
import { type ImportedMapping, importedMappings } from '../../terminology/store-imports.ts'

interface Match {
  readonly equivalence: string
  readonly system: string | undefined
  readonly version: string | undefined
  readonly code: string
  readonly display: string | undefined
  readonly map: string | undefined
  /** Conditions without a `dependency` in the request. */
  readonly dependsOn: readonly Dependency[]
  readonly product: readonly Dependency[]
}

interface Translation {
  /** False when the service selects maps by the codes. */
  readonly hasMap: boolean
  readonly codes: readonly GivenCode[]
  readonly reverse: boolean
  readonly dependencies: readonly GivenDependency[]
}

interface GivenDependency {
  readonly element: string
  readonly codings: readonly { readonly system: string | undefined; readonly code: string }[]
  readonly text: string | undefined
}

export const translate = terminologyOperation(
  {
    name: 'translate',
    type: 'ConceptMap',
    inputs: {
      ...CODE_INPUTS,
      url: 'text: Canonical address of the ConceptMap',
      conceptMapVersion: 'text: Of the ConceptMap',
      source: 'text: The source value set',
      target: 'text: The target value set',
      targetsystem: 'text: A system',
      targetSystem: 'text: The same',
      conceptMap: 'resource: In place of a stored ConceptMap',
      reverse: 'flag: From target to source',
      dependency: 'part*: A condition',
      'dependency.element': 'text!: Canonical address of an element',
      'dependency.concept': 'object!: Its value, a CodeableConcept',
    },
    text: { summary: 'Translate a code', answer: 'Parameters' },
  },
  async ({ call, inputs, terminology }) => {
    const maps = ['url', 'source', 'target'].map((name) => inputs.text(name))
    const named = [call.id, ...maps, inputs.resource('conceptMap')]
    const request = {
      hasMap: named.some((one) => one !== undefined),
      codes: givenCodes(inputs),
      reverse: inputs.flag('reverse') === true,
      dependencies: inputs.parts('dependency').map(readDependency),
    }
    const wanted = inputs.text('targetsystem') ?? inputs.text('targetSystem')
    const selected = await selectMaps(call, inputs, { request, terminology })
    const searched = await withOtherMaps(call, selected, { request, terminology })
    const matches: Match[] = []
    for (const { conceptMap, codes, imported } of searched) {
      matches.push(
        ...codes.flatMap((code) => matchesIn(conceptMap, { code, imported }, request)),
        ...imported.map((row) => importedMatch(row, conceptMap, request)),
      )
    }
    const shown = matches.filter(({ system }) => wanted === undefined || system === wanted)
    const result = shown.some(({ equivalence }) => !NO_MATCH.has(equivalence))
    return parametersReply([
      ['result', 'valueBoolean', result],
      ['message', 'valueString', result ? undefined : 'No match was found'],
      ...shown.map((match): Output => ['match', 'part', matchParts(match)]),
    ])
  },
)

/** Errors: 400 without an element or a concept. */
function readDependency(part: Inputs): GivenDependency {
  const element = part.required('element')
  const concept = part.object('concept')
  if (concept === undefined) throw badRequest('A dependency needs a concept')
  const { coding = [], text } = concept
  if (!Array.isArray(coding) || !coding.every(isObject)) {
    throw badRequest('"dependency.concept.coding" must be a list of Codings')
  }
  if (text !== undefined && typeof text !== 'string') {
    throw badRequest('"dependency.concept.text" must be a string')
  }
  return { element, text, codings: coding.map((one) => fromCoding(one, 'dependency.concept')) }
}

interface MapsFor {
  readonly request: Translation
  readonly terminology: Terminology
}

/** Errors: 404 for an unknown map, 400 when too many would be searched. */
async function selectMaps(
  call: OperationCall,
  inputs: Inputs,
  { request, terminology }: MapsFor,
): Promise<readonly FoundMap[]> {
  const { services } = call
  const own = await ownResource(call)
  if (own !== undefined) return [await foundMap(services, own)]
  const sent = inputs.resource('conceptMap')
  if (sent !== undefined) return [await foundMap(services, validateSent('ConceptMap', sent))]
  const url = inputs.text('url')
  if (url === undefined) {
    const { codes, reverse } = request
    const [source, target] = [inputs.text('source'), inputs.text('target')]
    return findMaps(call, { codes, reverse, source, target })
  }
  const version = inputs.text('conceptMapVersion')
  const canonical = version === undefined ? url : `${url}|${version}`
  const found = await terminology.conceptMap(canonical)
  if (found === undefined) throw definitionNotFound('ConceptMap', canonical)
  return [found]
}

interface SearchedMap {
  readonly conceptMap: ConceptMap
  readonly codes: readonly GivenCode[]
  readonly imported: readonly ImportedMapping[]
}

const MOST_OTHER_MAPS = 20

/**
 * Adds the maps that groups name for codes without a mapping (`unmapped.mode` `other-map`), each for those codes.
 * Errors: 404 for an unknown map of a map that the request names, 400 for too many.
 */
async function withOtherMaps(
  call: OperationCall,
  maps: readonly FoundMap[],
  { request, terminology }: MapsFor,
): Promise<readonly SearchedMap[]> {
  const searched: SearchedMap[] = []
  const open = maps.map((found) => ({ found, codes: request.codes }))
  const seen = new Set<string>()
  for (const { found, codes } of open) {
    const { conceptMap } = found
    const imported = await importedIn(call, found, { ...request, codes })
    searched.push({ conceptMap, codes, imported })
    for (const code of codes) {
      for (const url of otherMaps(conceptMap, { code, imported }, request)) {
        const key = JSON.stringify([url, code])
        if (seen.has(key)) continue
        if (seen.add(key).size > MOST_OTHER_MAPS) {
          throw tooCostly(`More than ${MOST_OTHER_MAPS} other maps apply; give fewer codes`)
        }
        const other = await terminology.conceptMap(url)
        if (other !== undefined) open.push({ found: other, codes: [code] })
        else if (request.hasMap) throw definitionNotFound('ConceptMap', url)
      }
    }
  }
  return searched
}

interface Searched {
  readonly code: GivenCode
  readonly imported: readonly ImportedMapping[]
}

/** Returns the groups for the system of a code; without their rule for unmapped codes where it does not apply. */
function groupsFor(
  conceptMap: ConceptMap,
  { code: given, imported }: Searched,
  { reverse, hasMap }: Translation,
): readonly MapGroup[] {
  return (conceptMap.group ?? []).flatMap((group) => {
    const system = reverse ? group.target : group.source
    const version = reverse ? group.targetVersion : group.sourceVersion
    if (differs(given.system, system) || differs(given.version, version)) return []
    // When the map was found by code, the rule for unmapped codes applies only to the group's system.
    const isOfGroup = given.system !== undefined && given.system === system
    const isMapped =
      group.element?.some((item) => item.code === given.code && item.target?.length) ||
      imported.some(
        (row) => row.source === given.code && !differs(row.targetSystem || undefined, group.target),
      )
    const isUnmapped = !reverse && !isMapped && (isOfGroup || hasMap)
    return [{ ...group, unmapped: isUnmapped ? group.unmapped : undefined }]
  })
}

function otherMaps(
  conceptMap: ConceptMap,
  searched: Searched,
  request: Translation,
): readonly string[] {
  return groupsFor(conceptMap, searched, request).flatMap(({ unmapped }) =>
    unmapped?.mode === 'other-map' && unmapped.url !== undefined ? [unmapped.url] : [],
  )
}

function matchesIn(
  conceptMap: ConceptMap,
  searched: Searched,
  request: Translation,
): readonly Match[] {
  const { code } = searched.code
  return groupsFor(conceptMap, searched, request).flatMap((group) => {
    const found = request.reverse ? backward(group, code) : forward(group, code)
    return found.flatMap((match) => {
      const open = openConditions(match.dependsOn, request.dependencies)
      return open === undefined ? [] : [{ ...match, dependsOn: open, map: conceptMap.url }]
    })
  })
}

function differs(given: string | undefined, own: string | undefined): boolean {
  return given !== undefined && own !== undefined && given !== own
}

/** Returns the conditions without a given value; undefined when a given value contradicts one. */
function openConditions(
  conditions: readonly Dependency[],
  given: readonly GivenDependency[],
): readonly Dependency[] | undefined {
  const open: Dependency[] = []
  for (const condition of conditions) {
    const values = given.filter(({ element }) => element === condition.property)
    if (values.length === 0) open.push(condition)
    else if (!values.some((value) => isMet(condition, value))) return undefined
  }
  return open
}

function isMet({ system, value }: Dependency, { codings, text }: GivenDependency): boolean {
  return text === value || codings.some((one) => one.code === value && !differs(one.system, system))
}

type Found = Omit<Match, 'map'>

function forward(group: MapGroup, code: string): readonly Found[] {
  const { element = [], target: system, targetVersion: version, unmapped } = group
  const mapped = element.filter((item) => item.code === code).flatMap((item) => item.target ?? [])
  if (mapped.length > 0) {
    return mapped.map(({ code: to = '', equivalence = 'equivalent', ...more }) => {
      const { display, dependsOn = [], product = [] } = more
      return { equivalence, system, version, code: to, display, dependsOn, product }
    })
  }
  const rest = { system, version, dependsOn: [], product: [] }
  if (unmapped?.mode === 'provided') {
    return [{ ...rest, equivalence: 'equal', code, display: undefined }]
  }
  if (unmapped?.mode !== 'fixed' || unmapped.code === undefined) return []
  return [{ ...rest, equivalence: 'inexact', code: unmapped.code, display: unmapped.display }]
}

/** Reversing a mapping swaps its products and conditions. */
function backward(group: MapGroup, code: string): readonly Found[] {
  const { element = [], source: system, sourceVersion: version } = group
  return element.flatMap(({ code: from = '', display, target = [] }) =>
    target
      .filter((item) => item.code === code)
      .map(({ equivalence = 'equivalent', dependsOn = [], product = [] }) => ({
        equivalence: reversed(equivalence),
        system,
        version,
        code: from,
        display,
        dependsOn: product,
        product: dependsOn,
      })),
  )
}

async function importedIn(
  { services }: OperationCall,
  { owner }: FoundMap,
  { codes, reverse }: Translation,
): Promise<readonly ImportedMapping[]> {
  if (owner === undefined) return []
  return services.repository.withStore(({ connection }) =>
    importedMappings(connection, owner, { codes, reverse }),
  )
}

function importedMatch(
  row: ImportedMapping,
  conceptMap: ConceptMap,
  { reverse }: Translation,
): Match {
  return {
    equivalence: reverse ? reversed(row.equivalence) : row.equivalence,
    system: reverse ? row.sourceSystem : row.targetSystem,
    version: undefined,
    code: reverse ? row.source : row.target,
    display: reverse ? undefined : (row.display ?? undefined),
    map: conceptMap.url,
    dependsOn: [],
    product: [],
  }
}

const NO_MATCH = new Set(['unmatched', 'disjoint'])

const REVERSED: Readonly<Record<string, string>> = {
  wider: 'narrower',
  narrower: 'wider',
  subsumes: 'specializes',
  specializes: 'subsumes',
}

function reversed(equivalence: string): string {
  return REVERSED[equivalence] ?? equivalence
}

function matchParts(match: Match): readonly Output[] {
  const { equivalence, system, version, code, display, map, dependsOn, product } = match
  const concept = {
    ...(system ? { system } : {}),
    ...(system && version !== undefined ? { version } : {}),
    code,
    ...(display === undefined ? {} : { display }),
  }
  return [
    ['equivalence', 'valueCode', equivalence],
    ['concept', 'valueCoding', code === '' ? undefined : concept],
    ['source', 'valueUri', map],
    ...product.map((one): Output => ['product', 'part', dependencyParts(one)]),
    ...dependsOn.map((one): Output => ['dependsOn', 'part', dependencyParts(one)]),
  ]
}

function dependencyParts({ property, system, value, display }: Dependency): readonly Output[] {
  const concept = {
    ...(system === undefined ? {} : { system }),
    code: value,
    ...(display === undefined ? {} : { display }),
  }
  return [
    ['element', 'valueUri', property],
    ['concept', 'valueCoding', concept],
  ]
}
