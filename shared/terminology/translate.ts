/** `ConceptMap/$translate`: https://hl7.org/fhir/R4/conceptmap-operation-translate.html */
import { badRequest } from '../errors.ts'
import { type ConceptMap, coreConceptMaps, type MapGroup } from '../fhir/terminology.ts'
import type { Criterion } from '../query/search-request.ts'
import { escapeValue } from '../query/values.ts'
import { type Inputs, type Output, parameter, parametersReply } from '../request/parameters.ts'
import type { OperationCall } from '../request/request.ts'
import { findAll } from '../store/rows/lookups.ts'
import {
  CODE_PARAMETERS,
  type GivenCode,
  givenCodes,
  notKnown,
  ownResource,
  sentAs,
  terminologyOperation,
  texts,
} from './codes.ts'
import {
  createImportedConcepts,
  type FoundMap,
  foundMap,
  readersOf,
  type Terminology,
} from './find.ts'

interface Match {
  readonly equivalence: string
  readonly system: string | undefined
  readonly code: string
  readonly display: string | undefined
  readonly map: string | undefined
}

export const translate = terminologyOperation(
  'translate',
  ['ConceptMap'],
  () => [
    ...CODE_PARAMETERS,
    ...texts('url', 'conceptMapVersion', 'source', 'target', 'targetsystem', 'targetSystem'),
    { name: 'conceptMap', kind: 'resource' },
    { name: 'reverse', kind: 'flag' },
  ],
  async ({ call, inputs, terminology }) => {
    const codes = givenCodes(inputs)
    const reverse = inputs.flag('reverse') === true
    const wanted = inputs.text('targetsystem') ?? inputs.text('targetSystem')
    const matches: Match[] = []
    for (const found of await mapsOf(call, inputs, terminology)) {
      for (const code of codes) {
        matches.push(
          ...matchesIn(found.conceptMap, code, reverse),
          ...(await importedIn(call, found, code, reverse)),
        )
      }
    }
    const shown = matches.filter(({ system }) => wanted === undefined || system === wanted)
    const result = shown.some(({ equivalence }) => !NO_MATCH.has(equivalence))
    return parametersReply([
      ['result', 'valueBoolean', result],
      ['message', 'valueString', result ? undefined : 'No match was found'],
      ...shown.map((match): Output => ['match', 'part', partsOf(match)]),
    ])
  },
)

/** Errors: 400 when no map is named, 404 when it is not there. */
async function mapsOf(
  call: OperationCall,
  inputs: Inputs,
  terminology: Terminology,
): Promise<readonly FoundMap[]> {
  const { services } = call
  const own = await ownResource(call)
  if (own !== undefined) return [await foundMap(services, own)]
  const sent = inputs.resource('conceptMap')
  if (sent !== undefined) return [await foundMap(services, sentAs('ConceptMap', sent))]
  const url = inputs.text('url')
  if (url === undefined) return mapsBetween(call, inputs)
  const version = inputs.text('conceptMapVersion')
  const canonical = version === undefined ? url : `${url}|${version}`
  const found = await terminology.conceptMap(canonical)
  if (found === undefined) throw notKnown('ConceptMap', canonical)
  return [found]
}

/** All maps between the value sets named. */
async function mapsBetween(call: OperationCall, inputs: Inputs): Promise<readonly FoundMap[]> {
  const { services, principal } = call
  const source = inputs.text('source')
  const target = inputs.text('target')
  if (source === undefined && target === undefined) {
    throw badRequest('Give the url of a ConceptMap, or a source or target value set')
  }
  const all: FoundMap[] = coreConceptMaps().map((conceptMap) => ({ conceptMap, owner: undefined }))
  for (const reader of await readersOf(services, principal, 'ConceptMap')) {
    const asked = [...namedBy('source', source), ...namedBy('target', target)]
    const stored = await findAll(services.repository, reader, 'ConceptMap', asked)
    all.push(...(await Promise.all(stored.map((item) => foundMap(services, item)))))
  }
  return all.filter(({ conceptMap }) => {
    const { sourceUri, sourceCanonical, targetUri, targetCanonical } = conceptMap
    const isFrom = source === undefined || [sourceUri, sourceCanonical].includes(source)
    return isFrom && (target === undefined || [targetUri, targetCanonical].includes(target))
  })
}

/** Both forms of `source[x]` and `target[x]`. */
function namedBy(end: 'source' | 'target', url: string | undefined): readonly Criterion[] {
  if (url === undefined) return []
  const values = [escapeValue(url)]
  const criteria = [
    { code: `${end}-uri`, type: 'reference', modifier: undefined, values } as const,
    { code: end, type: 'reference', modifier: undefined, values } as const,
  ]
  return [{ kind: 'or', criteria }]
}

function matchesIn(conceptMap: ConceptMap, given: GivenCode, reverse: boolean): readonly Match[] {
  return (conceptMap.group ?? []).flatMap((group) => {
    const system = reverse ? group.target : group.source
    if (given.system !== undefined && system !== undefined && given.system !== system) return []
    const found = reverse ? backward(group, given.code) : forward(group, given.code)
    return found.map((match) => ({ ...match, map: conceptMap.url }))
  })
}

type Found = Omit<Match, 'map'>

function forward({ element = [], target, unmapped }: MapGroup, code: string): readonly Found[] {
  const mapped = element.filter((item) => item.code === code).flatMap((item) => item.target ?? [])
  if (mapped.length > 0) {
    return mapped.map(({ code: to, display, equivalence = 'equivalent' }) => {
      return { equivalence, system: target, code: to ?? '', display }
    })
  }
  if (unmapped?.mode === 'provided') {
    return [{ equivalence: 'equal', system: target, code, display: undefined }]
  }
  if (unmapped?.mode !== 'fixed' || unmapped.code === undefined) return []
  const { code: fixed, display } = unmapped
  return [{ equivalence: 'inexact', system: target, code: fixed, display }]
}

function backward({ element = [], source }: MapGroup, code: string): readonly Found[] {
  return element.flatMap(({ code: from = '', target = [] }) =>
    target
      .filter((item) => item.code === code)
      .map(({ equivalence = 'equivalent' }) => {
        return {
          equivalence: reversed(equivalence),
          system: source,
          code: from,
          display: undefined,
        }
      }),
  )
}

async function importedIn(
  { services }: OperationCall,
  { conceptMap, owner }: FoundMap,
  { system, code }: GivenCode,
  reverse: boolean,
): Promise<readonly Match[]> {
  if (owner === undefined) return []
  const rows = await services.repository
    .feature(createImportedConcepts)
    .mappings(owner, { system, code, reverse })
  return rows.map((row) => ({
    equivalence: reverse ? reversed(row.equivalence) : row.equivalence,
    system: reverse ? row.sourceSystem : row.targetSystem,
    code: reverse ? row.source : row.target,
    display: reverse ? undefined : (row.display ?? undefined),
    map: conceptMap.url,
  }))
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

function partsOf({ equivalence, system, code, display, map }: Match): object[] {
  const concept = {
    ...(system ? { system } : {}),
    code,
    ...(display === undefined ? {} : { display }),
  }
  const parts: Output[] = [
    ['equivalence', 'valueCode', equivalence],
    ['concept', 'valueCoding', code === '' ? undefined : concept],
    ['source', 'valueUri', map],
  ]
  return parts.flatMap(parameter)
}
