/** The CapabilityStatement, with the search parameters of each type. */
import { createHash } from 'node:crypto'
import { Cache } from '../core/cache.ts'
import {
  COMPARTMENTS,
  isPlatformType,
  isResourceType,
  publishedProfileUrls,
  resourceTypes,
  searchParameter,
  searchParameters,
} from '../fhir/definitions.ts'
import type { OwnParameters, SearchParameter } from '../fhir/definitions-data.ts'
import { isOfWords } from '../fhir/searched-text.ts'
import { coreCodeSystems } from '../fhir/terminology.ts'
import { emptyReply, textReply } from '../request/reply.ts'
import type { FhirContext, FhirReply, Operation } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { isReady } from '../search/language/criteria.ts'
import { referenceParameters } from '../search/language/parameter-paths.ts'
import { hasFullText } from '../store/rows/side-rows.ts'
import { webSocketUrl } from '../subscriptions/socket-subscriptions.ts'
import { operations } from './operations.ts'

/** Public and equal for all callers, except for a Project's own definitions. */
export async function capabilities({
  services,
  principal,
  request,
}: FhirContext): Promise<FhirReply> {
  const isTerminology = request.query.get('mode') === 'terminology'
  const own = principal.project.parameters
  const { text, etag } =
    own === undefined || isTerminology
      ? statement(services, isTerminology ? describeTerminology : describe)
      : statement(services, (baseUrl) => describe(baseUrl, own), own)
  if (request.headers['if-none-match']?.includes(etag)) return emptyReply(304, { ETag: etag })
  return textReply(200, text, { ETag: etag })
}

/** Changes per release only, so that the ETag is the same on every process. */
const RELEASED = '2026-11-21'

interface Statement {
  readonly baseUrl: string
  readonly text: string
  readonly etag: string
}

type Make = (baseUrl: string) => object

const built = new Cache<Make | OwnParameters, Statement>({ name: 'metadata', max: 50 })

function statement({ config }: Services, make: Make, name: Make | OwnParameters = make): Statement {
  const { baseUrl } = config
  const known = built.get(name)
  if (known?.baseUrl === baseUrl) return known
  const text = JSON.stringify(make(baseUrl))
  const hash = createHash('sha256').update(text).digest('base64url').slice(0, 16)
  const made = { baseUrl, text, etag: `W/"${hash}"` }
  built.set(name, made)
  return made
}

/** https://hl7.org/fhir/R4/terminologycapabilities.html */
function describeTerminology(baseUrl: string): object {
  const parameters = [
    'activeOnly',
    'count',
    'displayLanguage',
    'excludeNotForUI',
    'filter',
    'offset',
  ]
  return {
    resourceType: 'TerminologyCapabilities',
    ...head(baseUrl),
    codeSystem: coreCodeSystems().map((uri) => ({ uri })),
    expansion: {
      hierarchical: false,
      paging: true,
      incomplete: true,
      parameter: parameters.map((name) => ({ name })),
      textFilter:
        'Every word must begin a word of the display; letter case and accents are ignored.',
    },
    codeSearch: 'all',
    validateCode: { translations: false },
    translation: { needsMap: true },
  }
}

function head(baseUrl: string): object {
  return {
    status: 'active',
    date: RELEASED,
    kind: 'instance',
    // No version: the statement is public.
    software: { name: 'Botica' },
    implementation: { description: 'Botica FHIR server', url: `${baseUrl}fhir/R4` },
  }
}

const WEB_SOCKET = 'http://hl7.org/fhir/StructureDefinition/capabilitystatement-websocket'

function describe(baseUrl: string, own?: OwnParameters): object {
  return {
    resourceType: 'CapabilityStatement',
    ...head(baseUrl),
    instantiates: [`${BULK}/CapabilityStatement/bulk-data`],
    fhirVersion: '4.0.1',
    format: ['json', 'application/fhir+json'],
    patchFormat: ['application/json-patch+json', 'application/fhir+json'],
    rest: [
      {
        extension: [{ url: WEB_SOCKET, valueUri: webSocketUrl(baseUrl) }],
        mode: 'server',
        security: security(baseUrl),
        resource: resourceTypes.map((type) => describeType(type, own)),
        interaction: ['transaction', 'batch', 'history-system', 'search-system'].map((code) => ({
          code,
        })),
        searchParam: sharedParameters,
        compartment: compartments,
        operation: operationsAt(undefined),
      },
    ],
  }
}

function security(baseUrl: string): object {
  const services = ['OAuth', 'SMART-on-FHIR', 'Basic'].map((code) => ({
    coding: [{ system: 'http://terminology.hl7.org/CodeSystem/restful-security-service', code }],
  }))
  const addresses = ['authorize', 'token', 'introspect', 'revoke', 'register'].map((name) => ({
    url: name,
    valueUri: `${baseUrl}oauth2/${name}`,
  }))
  const oauthUris = {
    url: 'http://fhir-registry.smarthealthit.org/StructureDefinition/oauth-uris',
    extension: addresses,
  }
  return { extension: [oauthUris], cors: true, service: services }
}

const INTERACTIONS = [
  'create',
  'read',
  'vread',
  'update',
  'patch',
  'delete',
  'history-instance',
  'history-type',
]

function describeType(type: string, own: OwnParameters | undefined): object {
  const canSearch = type !== 'Binary'
  const codes = canSearch ? [...INTERACTIONS, 'search-type'] : INTERACTIONS
  // The content of a Binary has no table form.
  const offered = operationsAt(type).filter(({ name }) => canSearch || name !== 'csv')
  const supported = publishedProfileUrls(type)
  return {
    type,
    profile: `${isPlatformType(type) ? PLATFORM_PROFILES : STANDARD_PROFILES}${type}`,
    ...(supported.length === 0 ? {} : { supportedProfile: supported }),
    interaction: codes.map((code) => ({ code })),
    versioning: 'versioned',
    readHistory: true,
    updateCreate: false,
    conditionalCreate: canSearch,
    conditionalRead: 'full-support',
    conditionalUpdate: canSearch,
    conditionalDelete: canSearch ? 'multiple' : 'not-supported',
    referencePolicy: ['literal', 'logical', 'local'],
    ...(canSearch ? describeSearch(type, own) : {}),
    ...(offered.length === 0 ? {} : { operation: offered }),
  }
}

const STANDARD_PROFILES = 'http://hl7.org/fhir/StructureDefinition/'
const PLATFORM_PROFILES = 'https://medplum.com/fhir/StructureDefinition/'

const BULK = 'http://hl7.org/fhir/uv/bulkdata'
const STANDARD_OPERATIONS = 'http://hl7.org/fhir/OperationDefinition/'
const PLATFORM_OPERATIONS = 'https://medplum.com/fhir/OperationDefinition/'

function operationsAt(type: string | undefined): { name: string; definition: string }[] {
  const offered = operations.filter(({ on }) =>
    on.some(({ level, type: only }) =>
      type === undefined ? level === 'system' : level !== 'system' && (only ?? type) === type,
    ),
  )
  return offered.map((operation) => ({
    name: operation.name,
    definition: operationDefinition(operation, type),
  }))
}

function operationDefinition(operation: Operation, type: string | undefined): string {
  const { name, standard, definition } = operation
  if (definition !== undefined) return definition
  if (standard === 'bulk') {
    return `${BULK}/OperationDefinition/${type === undefined ? '' : `${type.toLowerCase()}-`}${name}`
  }
  if (standard === undefined) return `${PLATFORM_OPERATIONS}${name}`
  return `${STANDARD_OPERATIONS}${standard === 'type' ? type : standard}-${name}`
}

/** Returns `searchParam`, `searchInclude`, `searchRevInclude` of a type. */
function describeSearch(type: string, own: OwnParameters | undefined): object {
  return {
    searchInclude: ['*', ...listIncludes(type, own)],
    searchRevInclude: ['*', ...(referrers().get(type) ?? []), 'Provenance:target'],
    searchParam: listSearchParameters(type, own),
  }
}

const compartments = COMPARTMENTS.map(
  (name) => `http://hl7.org/fhir/CompartmentDefinition/${name.toLowerCase()}`,
)

/** Common to all types; the last ones control the result. */
const sharedParameters = [
  ['_has', 'string'],
  ['_list', 'string'],
  ['_filter', 'special'],
  ['_compartment', 'reference'],
  ['_count', 'number'],
  ['_sort', 'string'],
  ['_total', 'token'],
  ['_summary', 'token'],
  ['_elements', 'string'],
].map(([name, type]) => ({ name, type }))

function listSearchParameters(type: string, own: OwnParameters | undefined): object[] {
  return [...searchParameters(type, own).values()]
    .filter((parameter) => isReady(parameter) && isAnswered(type, parameter, own))
    .map(({ code, url, type: kind }) => ({ name: code, definition: url, type: kind }))
}

function isAnswered(
  type: string,
  { code, expression }: SearchParameter,
  own: OwnParameters | undefined,
): boolean {
  if (expression !== undefined) return true
  return isOfWords(code) && own?.fullText === 'ready' && hasFullText(type)
}

function listIncludes(type: string, own: OwnParameters | undefined): readonly string[] {
  return referenceParameters(type, own).map((code) => `${type}:${code}`)
}

let known: ReadonlyMap<string, readonly string[]> | undefined

/** Omits references to any type: `*` covers them. */
function referrers(): ReadonlyMap<string, readonly string[]> {
  if (known !== undefined) return known
  const found = new Map<string, string[]>()
  for (const source of resourceTypes) {
    for (const code of referenceParameters(source)) {
      for (const target of searchParameter(source, code)?.targets ?? []) {
        if (!isResourceType(target)) continue
        found.set(target, [...(found.get(target) ?? []), `${source}:${code}`])
      }
    }
  }
  known = found
  return found
}
