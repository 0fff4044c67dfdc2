/**
 * The module `@medplum/core`: the most used names, each read from its file on first access, so that a bot pays only for
 * its imports. The published library adds the others (`extend`) for a bot that names one of them.
 */

const files = {
  './client.cjs': ['MedplumClient'],
  './constants.cjs': ['CPT', 'ContentType', 'ICD10', 'LOINC', 'NDC', 'RXNORM', 'SNOMED', 'UCUM'],
  './format.cjs': [
    'formatAddress',
    'formatCodeableConcept',
    'formatDate',
    'formatDateTime',
    'formatFamilyName',
    'formatGivenName',
    'formatHumanName',
    'formatPeriod',
    'formatQuantity',
  ],
  './hl7-datetime.cjs': ['formatHl7DateTime', 'parseHl7DateTime'],
  './hl7.cjs': ['Hl7Context', 'Hl7Field', 'Hl7Message', 'Hl7Segment'],
  './outcomes.cjs': [
    'OperationOutcomeError',
    'allOk',
    'badRequest',
    'created',
    'forbidden',
    'isNotFound',
    'isOk',
    'normalizeErrorString',
    'normalizeOperationOutcome',
    'notFound',
    'unauthorized',
  ],
  './resources.cjs': [
    'addProfileToResource',
    'createReference',
    'findResourceByCode',
    'getAllQuestionnaireAnswers',
    'getCodeBySystem',
    'getDisplayString',
    'getExtension',
    'getExtensionValue',
    'getIdentifier',
    'getQuestionnaireAnswers',
    'getReferenceString',
    'isReference',
    'isResource',
    'parseReference',
    'resolveId',
    'setCodeBySystem',
    'setIdentifier',
  ],
  './values.cjs': [
    'calculateAge',
    'capitalize',
    'deepClone',
    'deepEquals',
    'getDateProperty',
    'isEmpty',
    'isObject',
    'isString',
    'sleep',
  ],
}

function encodeBase64(text) {
  const { base64Encode, utf8Encode } = require('../web/encoding.cjs')
  return base64Encode(utf8Encode(text))
}

function decodeBase64(text) {
  const { base64Decode, utf8Decode } = require('../web/encoding.cjs')
  return utf8Decode(base64Decode(text))
}

Object.assign(exports, {
  decodeBase64,
  encodeBase64,
  generateId: () => host.sync('uuid', '{}'),
})

for (const [file, names] of Object.entries(files)) {
  for (const name of names) {
    Object.defineProperty(exports, name, {
      configurable: true,
      enumerable: true,
      get: () => require(file)[name],
    })
  }
}

// Bundlers look for it to choose the meaning of a default import.
Object.defineProperty(exports, '__esModule', { value: true })
