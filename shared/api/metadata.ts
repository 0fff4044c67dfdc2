/**
 * The CapabilityStatement: https://hl7.org/fhir/R4/http.html#capabilities
 * Made from the tables that routing and search use, so it cannot claim what is not served.
 */
import { createHash } from 'node:crypto'
import program from '../../package.json' with { type: 'json' }
import { isPlatformType, resourceTypes } from '../fhir/definitions.ts'
import type { Services } from '../services.ts'
import type { FhirReply } from './handle.ts'
import type { Interaction } from './interaction.ts'
import { compartments, describeSearch, sharedParameters } from './metadata-search.ts'
import type { Operation } from './operation.ts'
import { operations } from './operations/table.ts'
import { emptyReply, textReply } from './reply.ts'

/** Built once a process; the same for every caller, also for one without a token. */
export async function capabilities({ services, request }: Interaction): Promise<FhirReply> {
  const { text, etag } = statement(services)
  if (request.headers['if-none-match']?.includes(etag)) return emptyReply(304, { ETag: etag })
  return textReply(200, text, { ETag: etag })
}

/** The statement changes with a release only, so that its ETag is the same on every process. */
const RELEASED = '2026-11-21'

let built: { readonly baseUrl: string; readonly text: string; readonly etag: string } | undefined

function statement({ config }: Services): { readonly text: string; readonly etag: string } {
  if (built?.baseUrl === config.baseUrl) return built
  const text = JSON.stringify(describe(config.baseUrl))
  const hash = createHash('sha256').update(text).digest('base64url').slice(0, 16)
  built = { baseUrl: config.baseUrl, text, etag: `W/"${hash}"` }
  return built
}

function describe(baseUrl: string): object {
  return {
    resourceType: 'CapabilityStatement',
    status: 'active',
    date: RELEASED,
    kind: 'instance',
    software: { name: 'Botica', version: program.version },
    implementation: { description: 'Botica FHIR server', url: `${baseUrl}fhir/R4` },
    fhirVersion: '4.0.1',
    format: ['json', 'application/fhir+json'],
    patchFormat: ['application/json-patch+json', 'application/fhir+json'],
    rest: [
      {
        mode: 'server',
        security: security(baseUrl),
        resource: resourceTypes.map(describeType),
        interaction: [{ code: 'transaction' }, { code: 'batch' }, { code: 'search-system' }],
        searchParam: sharedParameters,
        compartment: compartments,
        operation: operationsAt((operation) =>
          operation.on.some(({ level }) => level === 'system'),
        ),
      },
    ],
  }
}

function security(baseUrl: string): object {
  const services = ['OAuth', 'SMART-on-FHIR', 'Basic'].map((code) => ({
    coding: [{ system: 'http://terminology.hl7.org/CodeSystem/restful-security-service', code }],
  }))
  const addresses = ['token', 'authorize', 'introspect'].map((name) => ({
    url: name,
    valueUri: `${baseUrl}oauth2/${name}`,
  }))
  const oauthUris = {
    url: 'http://fhir-registry.smarthealthit.org/StructureDefinition/oauth-uris',
    extension: addresses,
  }
  return { extension: [oauthUris], cors: true, service: services }
}

const INTERACTIONS = ['create', 'read', 'vread', 'update', 'patch', 'delete', 'history-instance']

function describeType(type: string): object {
  const canSearch = type !== 'Binary'
  const codes = canSearch ? [...INTERACTIONS, 'search-type'] : INTERACTIONS
  const offered = operationsAt((operation) =>
    operation.on.some((on) => on.level !== 'system' && on.type === type),
  )
  return {
    type,
    profile: `${isPlatformType(type) ? PLATFORM_PROFILES : STANDARD_PROFILES}${type}`,
    interaction: codes.map((code) => ({ code })),
    versioning: 'versioned',
    readHistory: true,
    updateCreate: false,
    conditionalCreate: canSearch,
    conditionalRead: 'full-support',
    conditionalUpdate: canSearch,
    conditionalDelete: canSearch ? 'multiple' : 'not-supported',
    referencePolicy: ['literal', 'logical', 'local'],
    ...(canSearch ? describeSearch(type) : {}),
    ...(offered.length === 0 ? {} : { operation: offered }),
  }
}

const STANDARD_PROFILES = 'http://hl7.org/fhir/StructureDefinition/'
const PLATFORM_PROFILES = 'https://medplum.com/fhir/StructureDefinition/'

function operationsAt(isOffered: (operation: Operation) => boolean): object[] {
  return operations.filter(isOffered).map(({ name }) => ({
    name,
    definition: `https://medplum.com/fhir/OperationDefinition/${name}`,
  }))
}
