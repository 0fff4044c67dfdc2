/**
 * The modules a bot may import and what each exports; a test holds it against the modules of the
 * sandbox. Anything else fails when the bot is deployed.
 */
const core = [
  'CPT',
  'ContentType',
  'Hl7Context',
  'Hl7Field',
  'Hl7Message',
  'Hl7Segment',
  'ICD10',
  'LOINC',
  'MedplumClient',
  'NDC',
  'OperationOutcomeError',
  'RXNORM',
  'SNOMED',
  'UCUM',
  'addProfileToResource',
  'allOk',
  'badRequest',
  'calculateAge',
  'capitalize',
  'createReference',
  'created',
  'decodeBase64',
  'deepClone',
  'deepEquals',
  'encodeBase64',
  'evalFhirPath',
  'evalFhirPathTyped',
  'findResourceByCode',
  'forbidden',
  'formatAddress',
  'formatCodeableConcept',
  'formatDate',
  'formatDateTime',
  'formatFamilyName',
  'formatGivenName',
  'formatHl7DateTime',
  'formatHumanName',
  'formatPeriod',
  'formatQuantity',
  'generateId',
  'getAllQuestionnaireAnswers',
  'getCodeBySystem',
  'getDateProperty',
  'getDisplayString',
  'getExtension',
  'getExtensionValue',
  'getIdentifier',
  'getQuestionnaireAnswers',
  'getReferenceString',
  'isEmpty',
  'isNotFound',
  'isObject',
  'isOk',
  'isReference',
  'isResource',
  'isString',
  'normalizeErrorString',
  'normalizeOperationOutcome',
  'notFound',
  'parseHl7DateTime',
  'parseReference',
  'parseSearchRequest',
  'resolveId',
  'setCodeBySystem',
  'setIdentifier',
  'sleep',
  'unauthorized',
]

const buffer = ['Buffer', 'default']

const crypto = [
  'createHash',
  'createHmac',
  'default',
  'randomBytes',
  'randomUUID',
  'timingSafeEqual',
]

const nodeFetch = ['Headers', 'Request', 'Response', 'default']

const querystring = ['decode', 'default', 'encode', 'escape', 'parse', 'stringify', 'unescape']

const url = ['URL', 'URLSearchParams', 'default']

const util = ['TextDecoder', 'TextEncoder', 'default']

/** Exported names by module name. */
export const botModules: Readonly<Record<string, readonly string[]>> = {
  '@medplum/core': core,
  '@medplum/fhirtypes': [],
  buffer,
  crypto,
  'node-fetch': nodeFetch,
  querystring,
  url,
  util,
  'node:buffer': buffer,
  'node:crypto': crypto,
  'node:querystring': querystring,
  'node:url': url,
  'node:util': util,
}
