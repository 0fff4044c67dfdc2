/** Definitions of FHIR R4 and of the platform, read from data/. Files are unpacked, and types parsed, on first use. */

import numbers from './data/type-numbers.json' with { type: 'json' }
import type {
  CompartmentLine,
  ElementDefinition,
  OperationLine,
  OwnParameters,
  ProfileLine,
  SearchLine,
  SearchParameter,
  ShortsLine,
  SnapshotLine,
  TypeDefinition,
  ValueSetLine,
} from './definitions-data.ts'
import { openLines, openOnce } from './definitions-data.ts'

export const COMPARTMENTS = [
  'Patient',
  'Encounter',
  'RelatedPerson',
  'Practitioner',
  'Device',
] as const
export type Compartment = (typeof COMPARTMENTS)[number]

const numberByType = new Map(Object.entries(numbers))
const typeByNumber = new Map(Object.entries(numbers).map(([name, number]) => [number, name]))

/** Storable resource types, sorted. */
export const resourceTypes: readonly string[] = [...numberByType.keys()].sort()

export function isResourceType(name: string): boolean {
  return numberByType.has(name)
}

/** Number stored in rows for the type; never changes. Throws for an unknown type. */
export function typeNumber(name: string): number {
  const number = numberByType.get(name)
  if (number === undefined) throw new Error(`No resource type "${name}"`)
  return number
}

export function typeName(number: number): string {
  const name = typeByNumber.get(number)
  if (name === undefined) throw new Error(`No resource type has number ${number}`)
  return name
}

export function typeDefinition(name: string): TypeDefinition | undefined {
  const own = OWN_ELEMENTS.get(name)
  const published = types().get(name)
  if (own === undefined || published === undefined) return published
  const known = extended.get(name)
  if (known !== undefined) return known
  const definition = { ...published, elements: [...published.elements, ...own] }
  extended.set(name, definition)
  return definition
}

export function typeNames(): readonly string[] {
  return types().names()
}

/** Elements of a type in the order of the standard; empty for an unknown type. */
export function typeElements(type: string): readonly ElementDefinition[] {
  return typeDefinition(type)?.elements ?? []
}

/** R4 inputs of an operation such as `ValueSet/expand`; inputs nested in parts are `dependency.element`. */
export function operationParameters(name: string): readonly string[] {
  return operations().get(name)?.parameters ?? []
}

export function isPlatformType(type: string): boolean {
  return types().get(type)?.platform === true
}

/** Codes by system of an enumerable required binding; undefined when they cannot be enumerated. */
export function valueSet(url: string): ValueSetLine | undefined {
  return valueSets().get(url)
}

export function publishedProfile(url: string): ProfileLine | undefined {
  return profiles().get(url)
}

export function publishedSnapshot(url: string): SnapshotLine | undefined {
  return snapshots().get(url)
}

export function publishedSnapshots(): readonly string[] {
  return snapshots().names()
}

export function publishedProfileUrls(type: string): readonly string[] {
  byType ??= Map.groupBy(profiles().names(), (url) => publishedProfile(url)?.type)
  return byType.get(type) ?? []
}

let byType: ReadonlyMap<string | undefined, readonly string[]> | undefined

/** Returns the search parameters of a type: its own, those of Resource and DomainResource, and the Project's. */
export function searchParameters(
  type: string,
  own?: OwnParameters,
): ReadonlyMap<string, SearchParameter> {
  const added = own?.types.get(type)
  const standard = standardParameters(type)
  return added === undefined ? standard : new Map([...added, ...standard])
}

export function searchParameter(
  type: string,
  code: string,
  own?: OwnParameters,
): SearchParameter | undefined {
  return standardParameters(type).get(code) ?? own?.types.get(type)?.get(code)
}

function standardParameters(type: string): ReadonlyMap<string, SearchParameter> {
  const known = parametersByType.get(type)
  if (known) return known
  const own = isResourceType(type) ? search().get(type) : undefined
  const all = new Map<string, SearchParameter>()
  if (own) {
    const isDomain = types().get(type)?.base === 'DomainResource'
    const inherited = isDomain ? ['Resource', 'DomainResource'] : ['Resource']
    for (const base of inherited) add(all, search().get(base))
    for (const parameter of OWN_PARAMETERS) all.set(parameter.code, parameter)
    add(all, own)
    parametersByType.set(type, all)
  }
  return all
}

/** Returns the parameters whose rows answer a search: `combo-code` is the union of two, `phonetic` is `name`. */
export function storedParameters(type: string, code: string): readonly string[] {
  if (code === 'phonetic' && isSame(type, code, 'name')) return ['name']
  if (type !== 'Observation' || !code.startsWith('combo-')) return [code]
  const plain = code.slice('combo-'.length)
  return [plain, `component-${plain}`]
}

function isSame(type: string, one: string, other: string): boolean {
  const { expression } = searchParameter(type, one) ?? {}
  return expression !== undefined && expression === searchParameter(type, other)?.expression
}

/** Parameters that put a resource of `type` into a compartment; `{def}` is the resource itself. */
export function compartmentParams(compartment: Compartment, type: string): readonly string[] {
  return isResourceType(type) ? (compartments()[compartment]?.[type] ?? []) : []
}

/** Date parameter stored in the resource row itself (`d_lo`, `d_hi`). */
export function mainDate(type: string): string | undefined {
  const chosen = MAIN_DATE.get(type)
  if (chosen !== undefined) return chosen
  for (const parameter of searchParameters(type).values()) {
    if (parameter.type === 'date' && isSingle(type, parameter)) return parameter.code
  }
  return undefined
}

const MAIN_DATE: ReadonlyMap<string, string> = new Map([
  ['Observation', 'date'],
  ['Encounter', 'date'],
  ['Procedure', 'date'],
  ['Immunization', 'date'],
  ['DiagnosticReport', 'date'],
  ['CarePlan', 'date'],
  ['AllergyIntolerance', 'date'],
  ['Condition', 'onset-date'],
  ['MedicationRequest', 'authoredon'],
  ['Claim', 'created'],
  ['Goal', 'start-date'],
  ['ImagingStudy', 'started'],
  ['Patient', 'birthdate'],
  ['Slot', 'start'],
  ['Communication', 'sent'],
])

/** Meta parameters of the platform, on every type. */
const OWN_PARAMETERS: readonly SearchParameter[] = [
  {
    code: '_author',
    type: 'reference',
    url: 'urn:botica:search:_author',
    expression: 'Resource.meta.author',
  },
  {
    code: '_account',
    type: 'reference',
    url: 'urn:botica:search:_account',
    expression: 'Resource.meta.account | Resource.meta.accounts',
  },
  { code: '_compartment', type: 'reference', url: 'urn:botica:search:_compartment' },
  { code: '_project', type: 'reference', url: 'urn:botica:search:_project' },
]

const OWN_ELEMENTS: ReadonlyMap<string, readonly ElementDefinition[]> = new Map([
  [
    'ClientApplication',
    [
      { path: 'jwks', types: [{ code: 'string' }] },
      { path: 'tokenEndpointAuthMethod', types: [{ code: 'code' }] },
      { path: 'idTokenSignedResponseAlg', types: [{ code: 'code' }] },
      { path: 'tlsClientAuthSubjectDn', types: [{ code: 'string' }] },
      { path: 'tlsClientAuthSanDns', types: [{ code: 'string' }] },
      { path: 'tlsClientAuthSanUri', types: [{ code: 'string' }] },
      { path: 'tlsClientAuthSanIp', types: [{ code: 'string' }] },
      { path: 'tlsClientAuthSanEmail', types: [{ code: 'string' }] },
      { path: 'tlsClientCertificateThumbprint', max: '*', types: [{ code: 'string' }] },
    ],
  ],
  [
    'Login',
    [
      { path: 'expires', types: [{ code: 'instant' }] },
      { path: 'redirectUri', types: [{ code: 'uri' }] },
      { path: 'patient', types: [{ code: 'Reference', targets: ['Patient'] }] },
      { path: 'encounter', types: [{ code: 'Reference', targets: ['Encounter'] }] },
      { path: 'browser', types: [{ code: 'string' }] },
      { path: 'bySession', types: [{ code: 'boolean' }] },
      { path: 'consented', types: [{ code: 'boolean' }] },
      { path: 'registered', types: [{ code: 'boolean' }] },
      { path: 'clientProven', types: [{ code: 'boolean' }] },
      { path: 'certificateThumbprint', types: [{ code: 'string' }] },
    ],
  ],
  ['UserSecurityRequest', [{ path: 'expires', types: [{ code: 'instant' }] }]],
])
const extended = new Map<string, TypeDefinition>()

/** True for one plain path of elements with max 1: the row has one column pair for the main date. */
function isSingle(type: string, parameter: SearchParameter): boolean {
  const path = /^\(?(\w+)\.([\w.]+)(?: as \w+)?\)?(?:\.as\(\w+\))?$/.exec(
    parameter.expression ?? '',
  )
  if (path?.[1] !== type || path[2] === undefined) return false
  const steps = path[2].split('.')
  return steps.every((_, i) => {
    const wanted = steps.slice(0, i + 1).join('.')
    const element = typeElements(type).find((item) => item.path === wanted)
    return element !== undefined && element.max === undefined
  })
}

function add(all: Map<string, SearchParameter>, line: SearchLine | undefined): void {
  for (const parameter of line?.parameters ?? []) all.set(parameter.code, parameter)
}

const PARSED_SNAPSHOTS = 20

const parametersByType = new Map<string, ReadonlyMap<string, SearchParameter>>()

export function shortText(type: string, path = ''): string | undefined {
  return shorts().get(type)?.texts[path]
}

const shorts = openOnce(() => openLines<ShortsLine>('shorts', 'name'))
const types = openOnce(() => openLines<TypeDefinition>('types', 'name'))
const search = openOnce(() => openLines<SearchLine>('search', 'name'))
const valueSets = openOnce(() => openLines<ValueSetLine>('valuesets', 'url'))
const operations = openOnce(() => openLines<OperationLine>('operations', 'name'))
const profiles = openOnce(() => openLines<ProfileLine>('profiles', 'url'))
const snapshots = openOnce(() => openLines<SnapshotLine>('snapshots', 'url', PARSED_SNAPSHOTS))
const compartments = openOnce(
  () => openLines<CompartmentLine>('compartments', 'name').get('compartments')?.compartments ?? {},
)

export function capitalised(code: string): string {
  return code.charAt(0).toUpperCase() + code.slice(1)
}
