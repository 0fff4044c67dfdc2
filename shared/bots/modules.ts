/**
 * Importable modules and their exports, compared by a test with the sandbox; other imports fail at deployment. The
 * sandbox implements the most used names of `@medplum/core` for a fast start; the published library provides the rest.
 */
import {
  CORE,
  CRYPTO,
  importedLibraries,
  libraryExports,
  libraryModules,
  PDF,
} from './libraries/table.ts'

const names = (text: string): readonly string[] => text.trim().split(/\s+/)

const core = names(`
  CPT ContentType Hl7Context Hl7Field Hl7Message Hl7Segment ICD10 LOINC MedplumClient NDC OperationOutcomeError
  RXNORM SNOMED UCUM addProfileToResource allOk badRequest calculateAge capitalize createReference created
  decodeBase64 deepClone deepEquals encodeBase64 findResourceByCode forbidden formatAddress
  formatCodeableConcept formatDate formatDateTime formatFamilyName formatGivenName formatHl7DateTime
  formatHumanName formatPeriod formatQuantity generateId getAllQuestionnaireAnswers getCodeBySystem
  getDateProperty getDisplayString getExtension getExtensionValue getIdentifier getQuestionnaireAnswers
  getReferenceString isEmpty isNotFound isObject isOk isReference isResource isString normalizeErrorString
  normalizeOperationOutcome notFound parseHl7DateTime parseReference resolveId setCodeBySystem setIdentifier
  sleep unauthorized`)

const buffer = names('Blob Buffer File atob btoa constants default kMaxLength')

const cryptoLibrary = names(`
  KeyObject constants createCipheriv createDecipheriv createPrivateKey createPublicKey createSecretKey
  createSign createVerify diffieHellman generateKeyPair generateKeyPairSync getHashes getRandomValues hkdf
  hkdfSync pbkdf2 pbkdf2Sync privateDecrypt publicEncrypt randomFillSync randomInt scrypt scryptSync sign subtle
  verify webcrypto`)

const crypto = names('createHash createHmac default randomBytes randomUUID timingSafeEqual')

const nodeFetch = ['Headers', 'Request', 'Response', 'default']

const process = names('argv browser cwd emitWarning env nextTick platform version versions')

const querystring = ['decode', 'default', 'encode', 'escape', 'parse', 'stringify', 'unescape']

const timers = names(
  'clearImmediate clearInterval clearTimeout default promises setImmediate setInterval setTimeout',
)

const url = ['URL', 'URLSearchParams', 'default']

const util = ['TextDecoder', 'TextEncoder', 'default']

/** Exported names by module, without those of libraries. */
export const botModules: Readonly<Record<string, readonly string[]>> = {
  [CORE]: core,
  '@medplum/fhirtypes': [],
  buffer,
  crypto,
  'node-fetch': nodeFetch,
  process,
  querystring,
  timers,
  'timers/promises': ['default', 'setImmediate', 'setTimeout'],
  url,
  util,
  'node:buffer': buffer,
  'node:crypto': crypto,
  'node:process': process,
  'node:querystring': querystring,
  'node:timers': timers,
  'node:timers/promises': ['default', 'setImmediate', 'setTimeout'],
  'node:url': url,
  'node:util': util,
}

export function moduleExports(module: string): ReadonlySet<string> | undefined {
  if (module === CORE) return new Set([...core, ...libraryNames()])
  const plain = module.replace(/^node:/, '')
  const own = Object.hasOwn(botModules, module) ? botModules[module] : undefined
  if (plain === CRYPTO) return new Set([...crypto, ...cryptoLibrary])
  if (!libraryModules.includes(plain)) return own && new Set(own)
  return new Set([...(own ?? []), ...libraryExports(plain), 'default'])
}

/** Returns the libraries to load before the code; a false positive costs a little load time. */
export function requiredLibraries(code: string): readonly string[] {
  const isSigning = /\b(?:crypto|subtle)\b/.test(code) && cryptoPattern.test(code)
  return [
    ...(usesLibrary(code) ? [CORE] : []),
    ...(isSigning ? [CRYPTO] : []),
    ...(code.includes('createPdf') ? [PDF] : []),
    ...importedLibraries(code),
  ]
}

const cryptoPattern = new RegExp(`\\b(?:${cryptoLibrary.join('|')})\\b`)

/** True when the code may use a name that only the library has. */
export function usesLibrary(code: string): boolean {
  return code.includes(CORE) && libraryPattern().test(code)
}

let foundNames: readonly string[] | undefined

/** Loaded on first use. */
function libraryNames(): readonly string[] {
  foundNames ??= libraryExports(CORE).filter((name) => !core.includes(name))
  return foundNames
}

let foundPattern: RegExp | undefined

function libraryPattern(): RegExp {
  foundPattern ??= new RegExp(`\\b(?:${libraryNames().join('|')})\\b`)
  return foundPattern
}
