/** Codes in operation inputs: code and system, Coding, CodeableConcept. */
import { badRequest, type HttpError, notFound, tooCostly } from '../core/errors.ts'
import { withoutEmpty } from '../fhir/json.ts'
import { canonicalUrl, type Resource, toObjects } from '../fhir/resource.ts'
import { type Inputs, readInputs } from '../request/parameters.ts'
import type { FhirReply, InputTexts, Operation, OperationCall } from '../request/request.ts'
import { requireValid } from '../validation/validate.ts'
import {
  type CodeSource,
  fitsVersion,
  openTerminology,
  parsedOnce,
  type Terminology,
} from './find.ts'

export interface GivenCode {
  readonly system: string | undefined
  readonly version: string | undefined
  readonly code: string
  readonly display: string | undefined
}

export const CODE_INPUTS: InputTexts = {
  code: 'text: The code',
  system: 'text: Its system',
  systemVersion: 'text: The same as version',
  version: 'text: Of the system',
  display: 'text: To compare with',
  coding: 'object: System and code',
  codeableConcept: 'object: Several of them',
}

/** Limit on codings of one concept, each of which is looked up. */
const MOST_CODINGS = 100

/**
 * Returns the codes of one of the three forms, with the version of the call if they have none. Errors: 400 for none,
 * several or too many codes, or two versions of one.
 */
export function givenCodes(inputs: Inputs): readonly GivenCode[] {
  requireOneForm(inputs, 'code', 'coding', 'codeableConcept')
  const coding = inputs.object('coding')
  const concept = inputs.object('codeableConcept')
  const version = versionInput(inputs)
  if (concept !== undefined) {
    const codings = toObjects(concept.coding)
    if (codings.length === 0) throw badRequest('"codeableConcept" has no coding')
    if (codings.length > MOST_CODINGS) {
      throw tooCostly(`"codeableConcept" may have ${MOST_CODINGS} codings`)
    }
    const codes = codings.map((item) => fromCoding(item, 'codeableConcept'))
    return codes.map((item) => ({ ...item, version: item.version ?? version }))
  }
  if (coding !== undefined) {
    const given = fromCoding(coding, 'coding')
    const own = given.version ?? version
    if (version === undefined || version === own) return [{ ...given, version: own }]
    throw badRequest(`"version" is ${version}, but the coding is of ${own}`, 'version')
  }
  const code = inputs.text('code')
  if (code === undefined) throw badRequest('Give a code, a coding or a codeableConcept')
  const system = inputs.text('system')
  return [{ system, version, code, display: inputs.text('display') }]
}

/** Operations of ValueSets name the version of the system `systemVersion`, those of CodeSystems `version`. */
function versionInput(inputs: Inputs): string | undefined {
  const names = ['version', 'systemVersion']
  const [version, other] = [...new Set(names.flatMap((name) => inputs.text(name) ?? []))]
  if (other === undefined) return version
  throw badRequest(`"version" is ${version}, but "systemVersion" is ${other}`, 'systemVersion')
}

/** Errors: 400 for several forms of one code, of which all but one would be ignored. The first is a text. */
export function requireOneForm(inputs: Inputs, text: string, ...objects: readonly string[]): void {
  const given = [
    ...(inputs.text(text) === undefined ? [] : [text]),
    ...objects.filter((name) => inputs.object(name) !== undefined),
  ]
  if (given.length < 2) return
  throw badRequest(`Give only one of ${given.join(', ')}`, given[1])
}

/** Errors: 400 without a code or with members of the wrong type. */
export function fromCoding(coding: Readonly<Record<string, unknown>>, name: string): GivenCode {
  const text = (member: string) => {
    const value = coding[member]
    if (value === undefined || typeof value === 'string') return value
    throw badRequest(`"${name}.${member}" must be a string`)
  }
  const code = text('code')
  if (code === undefined || code === '') throw badRequest(`"${name}" has no code`)
  return { system: text('system'), version: text('version'), code, display: text('display') }
}

/** Returns the resource of an instance call, with platform meta. Errors: 403, 404, 410. */
export async function ownResource(call: OperationCall): Promise<Resource | undefined> {
  const { services, principal, type = '', id } = call
  if (id === undefined) return undefined
  return parsedOnce(await services.repository.read(principal, type, id))
}

/** Validates a resource in the call like a stored one. Errors: 400 for another type or shape. */
export function validateSent(type: string, { meta: _, ...resource }: Resource): Resource {
  if (resource.resourceType !== type) throw badRequest(`Expected a ${type}`)
  // Ignores id and meta, as imported rows belong to stored resources.
  const sent = withoutEmpty({ ...resource, resourceType: type })
  requireValid(sent, { strict: false })
  return sent
}

/** True for a code that names no other system or version than those of the CodeSystem. */
export function isFromSystem(
  { codeSystem }: CodeSource,
  { system, version }: Pick<GivenCode, 'system' | 'version'>,
): boolean {
  const isOfVersion = version === undefined || fitsVersion(codeSystem.version ?? '', version)
  return isOfVersion && (system === undefined || canonicalUrl(system) === codeSystem.url)
}

/** Returns the CodeSystem of an instance call or of the url. Errors: 400, 404. */
export async function requireCodeSource(
  call: OperationCall,
  terminology: Terminology,
  url: string | undefined,
  version: string | undefined,
): Promise<CodeSource> {
  const own = await ownResource(call)
  if (own !== undefined) return terminology.toCodeSource(own)
  if (url === undefined) throw badRequest('Missing required parameter "system"')
  const canonical = version === undefined ? url : `${canonicalUrl(url)}|${version}`
  const source = await terminology.codeSystem(canonical)
  if (source === undefined) throw definitionNotFound('CodeSystem', canonical)
  return source
}

/** Returns 404 for a definition named by the caller. */
export function definitionNotFound(kind: string, name: string): HttpError {
  return notFound(`${kind} ${name.slice(0, 200)} is not known`)
}

/** A terminology operation: at type and instance level, by GET and POST, with named inputs. */
export interface TerminologyCall {
  readonly call: OperationCall
  readonly inputs: Inputs
  readonly terminology: Terminology
}

export function terminologyOperation(
  { type, ...declared }: Pick<Operation, 'name' | 'text' | 'inputs'> & { readonly type: string },
  answer: (asked: TerminologyCall) => Promise<FhirReply>,
): Operation {
  return {
    ...declared,
    on: [
      { type, level: 'type' },
      { type, level: 'instance' },
    ],
    standard: 'type',
    methods: ['GET', 'POST'],
    onlyReads: true,
    run(call) {
      const inputs = readInputs(call)
      const terminology = openTerminology(call.services, call.principal)
      return answer({ call, inputs, terminology })
    },
  }
}
