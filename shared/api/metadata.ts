/** The CapabilityStatement, with the search parameters of each type. */

import { createHash } from 'node:crypto'
import type { Principal } from '../access/principal.ts'
import { Cache, getOrInsert } from '../core/cache.ts'
import { badRequest } from '../core/errors.ts'
import { singleValue } from '../core/query.ts'
import {
  COMPARTMENTS,
  isResourceType,
  publishedProfileUrls,
  resourceTypes,
  searchParameter,
  searchParameters,
} from '../fhir/definitions.ts'
import { type OwnParameters, openOnce, type SearchParameter } from '../fhir/definitions-data.ts'
import { typeCanonical } from '../fhir/published.ts'
import { coreCodeSystems } from '../fhir/terminology.ts'
import { type Declared, readDeclared } from '../identity/declared.ts'
import { serviceUrl } from '../request/project-scope.ts'
import { emptyReply, textReply } from '../request/reply.ts'
import type { FhirContext, FhirReply, Operation } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { isReady } from '../search/language/criteria.ts'
import { referenceParameters } from '../search/language/parameter-paths.ts'
import { isOfWords } from '../search/language/search-request.ts'
import { hasFullText } from '../store/rows/side-rows.ts'
import { webSocketUrl } from '../subscriptions/socket-subscriptions.ts'
import { topicUrls } from '../subscriptions/topics.ts'
import { operations } from './operations.ts'

/** `normative` is answered like `full`. https://hl7.org/fhir/R4/http.html#capabilities */
const MODES = new Set(['full', 'normative', 'terminology'])

/** Public and equal for all callers, except for a Project's own definitions. */
export async function capabilities({
  services,
  principal,
  request,
}: FhirContext): Promise<FhirReply> {
  const mode = singleValue(request.query, 'mode') ?? 'full'
  if (!MODES.has(mode)) throw badRequest(`mode must be one of ${[...MODES].join(', ')}`, 'mode')
  const isTerminology = mode === 'terminology'
  const { text, etag } = isTerminology
    ? statement(services, 'terminology', NONE, describeTerminology)
    : await describeFor(services, principal)
  if (request.headers['if-none-match']?.includes(etag)) return emptyReply(304, { ETag: etag })
  return textReply(200, text, { ETag: etag })
}

/** Changes per release only, so that the ETag is the same on every process. */
const RELEASED = '2026-11-21'

/** Definitions of a caller's Project. */
interface Own {
  readonly parameters: OwnParameters | undefined
  readonly declared: Declared | undefined
  /** Urls of topics. */
  readonly topics: readonly string[]
}

const NONE: Own = { parameters: undefined, declared: undefined, topics: [] }

interface Statement {
  readonly url: string
  readonly own: Own
  readonly text: string
  readonly etag: string
}

/** Address of the service, and the same under the called Project. */
interface Urls {
  readonly baseUrl: string
  readonly url: string
}

/** By number of the Project; those without definitions share one. */
const built = new Cache<string, Statement>({ name: 'metadata', max: 50 })
/** Statements at the address of a Project are apart, so that they do not displace the others. */
const scoped = new Cache<string, Statement>({ name: 'scoped-metadata', max: 50 })

async function describeFor(services: Services, principal: Principal): Promise<Statement> {
  const { parameters, number } = principal.project
  const [declared, topics] =
    principal.membershipId === undefined
      ? [undefined, []]
      : await services.repository.withStore((store) =>
          Promise.all([readDeclared(store.connection, principal), topicUrls(store, principal)]),
        )
  const own = { parameters, declared, topics }
  const isStandard = isSame(own, NONE)
  return statement(services, isStandard ? 'standard' : String(number), own, describe)
}

function statement(
  services: Services,
  name: string,
  own: Own,
  make: (urls: Urls, own: Own) => object,
): Statement {
  const { baseUrl } = services.config
  const url = serviceUrl(services)
  const cache = url === baseUrl ? built : scoped
  const known = cache.get(name)
  if (known?.url === url && isSame(known.own, own)) return known
  const text = JSON.stringify(make({ baseUrl, url }, own))
  const hash = createHash('sha256').update(text).digest('base64url').slice(0, 16)
  const made = { url, own, text, etag: `W/"${hash}"` }
  cache.set(name, made)
  return made
}

function isSame(one: Own, other: Own): boolean {
  const topics = one.topics.join() === other.topics.join()
  return (
    topics && one.parameters === other.parameters && one.declared?.stamp === other.declared?.stamp
  )
}

/** https://hl7.org/fhir/R4/terminologycapabilities.html */
function describeTerminology(urls: Urls): object {
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
    ...head(urls),
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

function head({ url }: Urls): object {
  return {
    status: 'active',
    date: RELEASED,
    kind: 'instance',
    // No version: the statement is public.
    software: { name: 'Botica' },
    implementation: { description: 'Botica FHIR server', url: `${url}fhir/R4` },
  }
}

const WEB_SOCKET = 'http://hl7.org/fhir/StructureDefinition/capabilitystatement-websocket'

function describe(urls: Urls, own: Own): object {
  const { statements = [], guides = [] } = own.declared ?? {}
  return {
    resourceType: 'CapabilityStatement',
    ...head(urls),
    instantiates: [`${BULK}/CapabilityStatement/bulk-data`, ...statements],
    fhirVersion: '4.0.1',
    format: ['json', 'application/fhir+json'],
    patchFormat: ['application/json-patch+json', 'application/fhir+json'],
    ...(guides.length === 0 ? {} : { implementationGuide: guides }),
    rest: [
      {
        extension: [{ url: WEB_SOCKET, valueUri: webSocketUrl(urls.baseUrl) }],
        mode: 'server',
        security: security(urls),
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

function security({ url }: Urls): object {
  const services = ['OAuth', 'SMART-on-FHIR', 'Basic'].map((code) => ({
    coding: [{ system: 'http://terminology.hl7.org/CodeSystem/restful-security-service', code }],
  }))
  const addresses = ['authorize', 'token', 'introspect', 'revoke', 'register'].map((name) => ({
    url: name,
    valueUri: `${url}oauth2/${name}`,
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

function describeType(type: string, { parameters, declared, topics }: Own): object {
  const canSearch = type !== 'Binary'
  const codes = canSearch ? [...INTERACTIONS, 'search-type'] : INTERACTIONS
  // The content of a Binary has no table form.
  const offered = operationsAt(type).filter(({ name }) => canSearch || name !== 'csv')
  const own = declared?.profiles.get(type) ?? []
  const supported = [...new Set([...publishedProfileUrls(type), ...own])]
  const listed = type === 'Subscription' ? topics : []
  return {
    ...(listed.length === 0
      ? {}
      : { extension: listed.map((valueCanonical) => ({ url: TOPIC, valueCanonical })) }),
    type,
    profile: typeCanonical(type),
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
    ...(canSearch ? describeSearch(type, parameters) : {}),
    ...(offered.length === 0 ? {} : { operation: offered }),
  }
}

const TOPIC =
  'http://hl7.org/fhir/uv/subscriptions-backport/StructureDefinition/capabilitystatement-subscriptiontopic-canonical'
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

/** Omits references to any type: `*` covers them. */
const referrers = openOnce(() => {
  const found = new Map<string, string[]>()
  for (const source of resourceTypes) {
    for (const code of referenceParameters(source)) {
      for (const target of searchParameter(source, code)?.targets ?? []) {
        if (!isResourceType(target)) continue
        getOrInsert(found, target, () => []).push(`${source}:${code}`)
      }
    }
  }
  return found
})
