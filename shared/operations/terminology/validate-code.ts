/** `$validate-code` of CodeSystem and ValueSet: https://hl7.org/fhir/R4/valueset-operation-validate-code.html */
import { badRequest, HttpError } from '../../core/errors.ts'
import { canonicalUrl, canonicalVersion } from '../../fhir/resource.ts'
import { normaliseString } from '../../fhir/values.ts'
import { type Inputs, parametersReply } from '../../request/parameters.ts'
import type { FhirReply, InputTexts } from '../../request/request.ts'
import {
  displayLanguages,
  isOfLanguage,
  preferredDisplay,
  SUPPLEMENTS,
  VERSIONS,
  withForcedVersions,
  withRequestedVersions,
  withSupplements,
} from '../../terminology/adjusted.ts'
import {
  CODE_INPUTS,
  type GivenCode,
  givenCodes,
  isFromSystem,
  ownResource,
  requireCodeSource,
  type TerminologyCall,
  terminologyOperation,
  validateSent,
} from '../../terminology/codes.ts'
import { requireValueSet } from '../../terminology/expand.ts'
import type { CodeSource, Terminology } from '../../terminology/find.ts'
import { evaluation } from '../../terminology/members.ts'
import { type Code, filterMembers, toCode } from '../../terminology/value-set-codes.ts'

/** Makes a wrong display a warning. */
const LENIENT = 'lenient-display-validation'

const INPUTS: InputTexts = {
  ...CODE_INPUTS,
  url: 'text: Canonical address of the CodeSystem or ValueSet',
  valueSetVersion: 'text: Of the ValueSet',
  displayLanguage: 'text: de, for example',
  abstract: 'flag: False: abstract codes are not valid',
  activeOnly: 'flag: Retired codes are not valid',
  [LENIENT]: 'flag: A wrong display is a warning',
  ...SUPPLEMENTS,
}

export const validateSystemCode = terminologyOperation(
  {
    name: 'validate-code',
    type: 'CodeSystem',
    inputs: { ...INPUTS, codeSystem: 'resource: In place of a stored CodeSystem' },
    text: { summary: 'Check a code', answer: 'Parameters' },
  },
  inCodeSystem,
)

export const validateSetCode = terminologyOperation(
  {
    name: 'validate-code',
    type: 'ValueSet',
    inputs: { ...INPUTS, ...VERSIONS, valueSet: 'resource: In place of a stored ValueSet' },
    text: { summary: 'Check a code', answer: 'Parameters' },
  },
  inValueSet,
)

/** True when at least one code is in the CodeSystem with a valid display. Errors: 400, 404. */
async function inCodeSystem(asked: TerminologyCall): Promise<FhirReply> {
  const { call, inputs, terminology: found } = asked
  const codes = givenCodes(inputs)
  const terminology = await withSupplements(found, inputs)
  const named = await namedCodeSource({ ...asked, terminology })
  const url = named?.codeSystem.url ?? inputs.text('url') ?? codes[0]?.system
  if (named === undefined && codes.every((given) => isOfOtherSystem(given, url))) {
    await requireCodeSource(call, terminology, url, undefined)
  }
  const languages = displayLanguages(call, inputs)
  const verdicts: Verdict[] = []
  const unknown: string[] = []
  for (const given of codes) {
    if (isOfOtherSystem(given, url)) continue
    const source = named ?? (await sourceInVersion({ ...asked, terminology }, url, given))
    if (typeof source === 'string') {
      unknown.push(source)
      continue
    }
    const { codeSystem } = source
    if (codeSystem.content === 'supplement') {
      return refused(`${codeSystem.url} is a supplement, which codes are not of`)
    }
    if (!isFromSystem(source, given)) continue
    const { concepts } = await source.list({ codes: [given.code], limit: 1 })
    const known = concepts.map((node) => toCode({ system: codeSystem.url }, codeSystem, node))
    verdicts.push(...known.map((code) => codeVerdict(inputs, given, code, languages)))
    if (known.length === 0 && codeSystem.content === 'fragment') {
      verdicts.push(inFragment(codeSystem.url))
    }
  }
  const best = bestVerdict(verdicts)
  if (best !== undefined) return replyTo(best)
  const [message] = unknown
  return message === undefined ? refusal(codes, `CodeSystem ${url}`) : refused(message)
}

function isOfOtherSystem({ system }: GivenCode, url: string | undefined): boolean {
  return system !== undefined && canonicalUrl(system) !== canonicalUrl(url ?? '')
}

/** Returns the CodeSystem in the version of the code, or a message without that version. Errors: 400, 404. */
async function sourceInVersion(
  { call, terminology }: TerminologyCall,
  url: string | undefined,
  { version }: GivenCode,
): Promise<CodeSource | string> {
  const pinned = canonicalVersion(url ?? '')
  if (pinned !== undefined) return requireCodeSource(call, terminology, url, pinned)
  const missing = await unknownVersion(terminology, { system: url, version })
  return missing ?? requireCodeSource(call, terminology, url, version)
}

/** Returns the CodeSystem of the address or of the call. Errors: 400 if the call names another. */
async function namedCodeSource({
  call,
  inputs,
  terminology,
}: TerminologyCall): Promise<CodeSource | undefined> {
  const sent = inputs.resource('codeSystem')
  if (call.id !== undefined && sent !== undefined) {
    throw badRequest('The address names a CodeSystem already', 'codeSystem')
  }
  const resource = (await ownResource(call)) ?? (sent && validateSent('CodeSystem', sent))
  if (resource === undefined) return undefined
  const source = await terminology.toCodeSource(resource)
  if (isFromSystem(source, { system: inputs.text('url'), version: undefined })) return source
  throw badRequest(`The CodeSystem of the call is ${resource.url ?? 'without a url'}`, 'url')
}

/** True when at least one code is in the value set with a valid display. */
async function inValueSet({
  call,
  inputs,
  terminology: found,
}: TerminologyCall): Promise<FhirReply> {
  const codes = givenCodes(inputs)
  const isCoded = inputs.text('code') === undefined
  if (isCoded && codes.every(({ system }) => system === undefined)) {
    return refused('A Coding without a system has no meaning')
  }
  const asked = withRequestedVersions(found, inputs)
  const valueSet = withForcedVersions(await requireValueSet(call, asked, inputs), inputs)
  const terminology = await withSupplements(asked, inputs, valueSet)
  const languages = displayLanguages(call, inputs, valueSet)
  const verdicts: Verdict[] = []
  const unknown: string[] = []
  for (const given of codes) {
    const { system, version, code } = given
    const missing = await unknownVersion(found, given)
    const held =
      missing ??
      (await unlessUnknown(
        filterMembers(evaluation(terminology, version), valueSet, { system, codes: [code] }),
      ))
    if (typeof held === 'string') {
      unknown.push(held)
      continue
    }
    const systems = [...new Set(held.map((one) => one.system))]
    if (systems.length > 1) return refused(`${code} is a code of ${systems.join(' and ')}`)
    verdicts.push(...held.map((one) => codeVerdict(inputs, given, one, languages)))
  }
  const best = bestVerdict(verdicts)
  if (best !== undefined) return replyTo(best)
  const [message] = unknown
  return message === undefined
    ? refusal(codes, `ValueSet ${valueSet.url ?? ''}`.trim())
    : refused(message)
}

/** Returns a message when the CodeSystem is known, but not in this version. */
async function unknownVersion(
  terminology: Terminology,
  { system, version }: Pick<GivenCode, 'system' | 'version'>,
): Promise<string | undefined> {
  if (system === undefined || version === undefined) return undefined
  if ((await terminology.codeSystem(`${system}|${version}`)) !== undefined) return undefined
  const other = await terminology.codeSystem(system)
  return other && `CodeSystem ${system} has no version ${version} here`
}

/** Returns a message for an unknown definition that the evaluation needs. */
async function unlessUnknown<T>(work: Promise<T>): Promise<T | string> {
  try {
    return await work
  } catch (error) {
    const isUnknown = error instanceof HttpError && error.outcome.issue[0]?.code === 'not-found'
    if (isUnknown) return error.message
    throw error
  }
}

interface Verdict {
  readonly isFine: boolean
  readonly display: string | undefined
  readonly isInactive: boolean
  readonly message: string | undefined
}

/** A fragment does not list all codes of its system. */
function inFragment(url: string): Verdict {
  const message = `Only a fragment of ${url} is here`
  return { isFine: true, display: undefined, isInactive: false, message }
}

/** A wrong display invalidates the code; the reply includes the right one. */
function codeVerdict(
  inputs: Inputs,
  given: GivenCode,
  code: Code,
  languages: readonly string[],
): Verdict {
  const wrong = codeFault(inputs, code)
  const display = preferredDisplay(languages, code)
  const isNamed = given.display === undefined || matchesDisplay(code, given.display, languages)
  const misnamed = isNamed
    ? undefined
    : `The display of ${given.code} is "${display}", not "${given.display}"`
  return {
    isFine: wrong === undefined && (isNamed || inputs.flag(LENIENT) === true),
    display,
    isInactive: code.isInactive,
    message: wrong ?? misnamed,
  }
}

function bestVerdict(verdicts: readonly Verdict[]): Verdict | undefined {
  return (
    verdicts.find(({ message }) => message === undefined) ??
    verdicts.find(({ isFine }) => isFine) ??
    verdicts[0]
  )
}

function replyTo({ isFine, display, isInactive, message }: Verdict): FhirReply {
  return parametersReply([
    ['result', 'valueBoolean', isFine],
    ['display', 'valueString', display],
    ['inactive', 'valueBoolean', isInactive ? true : undefined],
    ['message', 'valueString', message],
  ])
}

function codeFault(inputs: Inputs, { code, isAbstract, isInactive }: Code): string | undefined {
  if (isAbstract && inputs.flag('abstract') === false) return `${code} is abstract`
  if (isInactive && inputs.flag('activeOnly') === true) return `${code} is inactive`
  return undefined
}

/** True when the code has no known display to compare with. */
function matchesDisplay(code: Code, given: string, languages: readonly string[]): boolean {
  const { language, display, designations, otherNames } = code
  if (display === undefined) return true
  const all = [{ language, value: display }, ...designations, ...otherNames]
  const spoken = all.filter((name) => isWantedLanguage(name.language, languages))
  // Without a name in that language, accept any name.
  const names = spoken.length === 0 ? all : spoken
  return names.some(({ value }) => normaliseString(value) === normaliseString(given))
}

function isWantedLanguage(language: string | undefined, wanted: readonly string[]): boolean {
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
