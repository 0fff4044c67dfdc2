/**
 * `$validate-code` of CodeSystem and ValueSet:
 * https://hl7.org/fhir/R4/valueset-operation-validate-code.html
 */
import { HttpError } from '../errors.ts'
import type { ValueSet } from '../fhir/terminology.ts'
import { normaliseString } from '../fhir/values.ts'
import { type Inputs, parametersReply } from '../request/parameters.ts'
import type { FhirReply, OperationCall } from '../request/request.ts'
import {
  forcedIn,
  inVersions,
  isOfLanguage,
  languagesOf,
  SUPPLEMENTS,
  VERSIONS,
  withSupplements,
} from './adjusted.ts'
import {
  CODE_PARAMETERS,
  codeSourceOf,
  type GivenCode,
  givenCodes,
  sentAs,
  terminologyOperation,
  texts,
} from './codes.ts'
import type { ConceptNode } from './concept-index.ts'
import { isAbstract, isInactive } from './concepts.ts'
import { valueSetOf } from './expand.ts'
import type { CodeSource, Terminology } from './find.ts'
import { composeOf, evaluation, membersOf } from './members.ts'

/** A wrong display is a warning. */
const LENIENT = 'lenient-display-validation'

export const validateCode = terminologyOperation(
  'validate-code',
  ['CodeSystem', 'ValueSet'],
  (type) => [
    ...CODE_PARAMETERS,
    ...texts('url', 'valueSetVersion', 'displayLanguage'),
    { name: 'abstract', kind: 'flag' },
    { name: 'activeOnly', kind: 'flag' },
    { name: type === 'ValueSet' ? 'valueSet' : 'codeSystem', kind: 'resource' },
    { name: LENIENT, kind: 'flag' },
    ...SUPPLEMENTS,
    ...(type === 'ValueSet' ? VERSIONS : []),
  ],
  async ({ call, inputs, terminology }) => {
    const codes = givenCodes(inputs)
    const isCoded = inputs.text('code') === undefined
    if (call.type === 'ValueSet' && isCoded && codes.every(({ system }) => system === undefined)) {
      return refused('A Coding without a system has no meaning')
    }
    return call.type === 'ValueSet'
      ? inValueSet(call, terminology, inputs, codes)
      : inCodeSystem(call, terminology, inputs, codes)
  },
)

async function inCodeSystem(
  call: OperationCall,
  found: Terminology,
  inputs: Inputs,
  codes: readonly GivenCode[],
): Promise<FhirReply> {
  const terminology = await withSupplements(found, inputs)
  const url = inputs.text('url') ?? codes[0]?.system
  const sent = inputs.resource('codeSystem')
  const source =
    sent === undefined
      ? await codeSourceOf(call, terminology, url, inputs.text('version'))
      : await terminology.sourceOf(sentAs('CodeSystem', sent))
  const { codeSystem } = source
  if (codeSystem.content === 'supplement') {
    return refused(`${codeSystem.url} is a supplement, which codes are not of`)
  }
  const own = codes.filter(({ system }) => system === undefined || system === codeSystem.url)
  for (const code of own) {
    const node = await nodeOf(source, code.code)
    if (node !== undefined) {
      const { language } = codeSystem
      const languages = languagesOf(call, inputs)
      return verdict(inputs, code, { node, display: node.display, language, languages })
    }
  }
  if (codeSystem.content === 'fragment' && own.length > 0) {
    return parametersReply([
      ['result', 'valueBoolean', true],
      ['message', 'valueString', `Only a fragment of ${codeSystem.url} is here`],
    ])
  }
  return refusal(codes, `CodeSystem ${codeSystem.url}`)
}

async function inValueSet(
  call: OperationCall,
  found: Terminology,
  inputs: Inputs,
  codes: readonly GivenCode[],
): Promise<FhirReply> {
  const asked = inVersions(found, inputs)
  const valueSet = forcedIn(await valueSetOf(call, asked, inputs), inputs)
  const terminology = await withSupplements(asked, inputs, valueSet)
  const languages = languagesOf(call, inputs, valueSet)
  for (const code of codes) {
    const systems =
      code.system === undefined ? systemsOf(composeOf(valueSet).include) : [code.system]
    const holding: string[] = []
    for (const system of systems) {
      const unknown = await unknownVersion(found, system, code.version)
      if (unknown !== undefined) return refused(unknown)
      const asked = membersOf(evaluation(terminology, code.version), valueSet, system, [code.code])
      const members = await unlessUnknown(asked)
      if (typeof members === 'string') return refused(members)
      if (members.size > 0) holding.push(system)
    }
    const [system, other] = holding
    if (other !== undefined) return refused(`${code.code} is a code of ${holding.join(' and ')}`)
    if (system === undefined) continue
    const source = await terminology.codeSystem(versioned(system, code.version))
    const node = source && (await nodeOf(source, code.code))
    const display = node?.display ?? listedDisplay(valueSet, system, code.code)
    const { language } = source?.codeSystem ?? {}
    return verdict(inputs, code, { node, display, language, languages })
  }
  return refusal(codes, `ValueSet ${valueSet.url ?? ''}`.trim())
}

function versioned(system: string, version: string | undefined): string {
  return version === undefined ? system : `${system}|${version}`
}

/** Says so where a CodeSystem is known, but not in this version. */
async function unknownVersion(
  terminology: Terminology,
  system: string,
  version: string | undefined,
): Promise<string | undefined> {
  if (version === undefined) return undefined
  if ((await terminology.codeSystem(`${system}|${version}`)) !== undefined) return undefined
  const other = await terminology.codeSystem(system)
  return other && `CodeSystem ${system} has no version ${version} here`
}

/** Returns in words what the answer needs and nobody knows. */
async function unlessUnknown<T>(work: Promise<T>): Promise<T | string> {
  try {
    return await work
  } catch (error) {
    const isUnknown = error instanceof HttpError && error.outcome.issue[0]?.code === 'not-found'
    if (isUnknown) return error.message
    throw error
  }
}

/** The systems that a code without one may be of. */
function systemsOf(
  include: readonly { readonly system?: string | undefined }[] = [],
): readonly string[] {
  return [...new Set(include.flatMap(({ system }) => system ?? []))]
}

/** Returns the ValueSet's own display of a code whose CodeSystem is not here. */
function listedDisplay(valueSet: ValueSet, system: string, code: string): string | undefined {
  const lists = (composeOf(valueSet).include ?? []).filter((part) => part.system === system)
  const concepts = lists.flatMap(({ concept }) => concept ?? [])
  return concepts.find((concept) => concept.code === code)?.display
}

async function nodeOf(source: CodeSource, code: string): Promise<ConceptNode | undefined> {
  const { concepts } = await source.list({ codes: [code], limit: 1 })
  return concepts[0]
}

interface Known {
  readonly node: ConceptNode | undefined
  readonly display: string | undefined
  /** The language of `display`. */
  readonly language: string | undefined
  /** A given display is to be in one of these. */
  readonly languages: readonly string[]
}

/** A wrong display makes the code wrong, and the reply has the right one. */
function verdict(inputs: Inputs, given: GivenCode, known: Known): FhirReply {
  const { node, display } = known
  const wrong = faultOf(inputs, given, known)
  const misnamed = wrong === undefined ? misnameOf(given, known) : undefined
  const message = wrong ?? misnamed
  const isFine = wrong === undefined && (misnamed === undefined || inputs.flag(LENIENT) === true)
  return parametersReply([
    ['result', 'valueBoolean', isFine],
    ['display', 'valueString', display],
    ...(node === undefined || !isInactive(node) ? [] : [INACTIVE]),
    ['message', 'valueString', message],
  ])
}

const INACTIVE = ['inactive', 'valueBoolean', true] as const

function faultOf(inputs: Inputs, { code }: GivenCode, { node }: Known): string | undefined {
  if (node !== undefined && inputs.flag('abstract') === false && isAbstract(node)) {
    return `${code} is abstract`
  }
  if (node !== undefined && inputs.flag('activeOnly') === true && isInactive(node)) {
    return `${code} is inactive`
  }
  return undefined
}

function misnameOf(
  { code, display: given }: GivenCode,
  { node, display, language, languages }: Known,
): string | undefined {
  const all = [{ language, value: display }, ...(node?.designations ?? [])]
  const spoken = all.filter((name) => isSpoken(name.language, languages))
  // Where nothing is called anything in that language, every name will do.
  const names = (spoken.length === 0 ? all : spoken).map(({ value }) => value)
  const isRight =
    given === undefined ||
    display === undefined ||
    names.some((name) => name !== undefined && normaliseString(name) === normaliseString(given))
  return isRight ? undefined : `The display of ${code} is "${display}", not "${given}"`
}

function isSpoken(language: string | undefined, wanted: readonly string[]): boolean {
  if (language === undefined || wanted.length === 0) return true
  return wanted.some((one) => isOfLanguage(language, one))
}

function refusal(codes: readonly GivenCode[], where: string): FhirReply {
  const names = codes.map(({ system, code }) => (system === undefined ? code : `${system}|${code}`))
  return refused(`${names.join(', ')} is not in ${where}`)
}

function refused(message: string): FhirReply {
  return parametersReply([
    ['result', 'valueBoolean', false],
    ['message', 'valueString', message],
  ])
}
