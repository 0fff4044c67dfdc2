/**
 * Terminology adjusted to an operation: CodeSystem versions and supplements.
 * https://hl7.org/fhir/R4/valueset-operation-expand.html, https://hl7.org/fhir/R4/codesystem.html#supplements
 */
import { badRequest, unknownDefinition } from '../core/errors.ts'
import { canonicalUrl, canonicalVersion, toObjects } from '../fhir/resource.ts'
import type { Designation, Include, ValueSet } from '../fhir/terminology.ts'
import { acceptedLanguages } from '../request/negotiate.ts'
import type { Inputs } from '../request/parameters.ts'
import type { InputTexts, OperationCall } from '../request/request.ts'
import type { ConceptNode } from './concept-index.ts'
import { type CodeSource, fitsVersion, type Terminology } from './find.ts'

export const SUPPLEMENTS: InputTexts = {
  useSupplement: 'text*: Canonical address of a supplement',
}

const FORCED = 'force-system-version'

/** `system|version`, one per system. */
export const VERSIONS: InputTexts = {
  'system-version': 'text*: Used where none is given; system|version',
  'check-system-version': 'text*: Required; system|version',
  [FORCED]: 'text*: Used always; system|version',
  'default-valueset-version': 'text*: Used where none is given; url|version',
}

/** A default version applies where none is given; a forced one always applies. */
export function withRequestedVersions(terminology: Terminology, inputs: Inputs): Terminology {
  const [given, checked, forced, sets] = Object.keys(VERSIONS).map((name) =>
    readVersions(inputs, name),
  )
  const named = (canonical: string, version: string | undefined) =>
    version === undefined ? canonical : `${canonicalUrl(canonical)}|${version}`
  return {
    ...terminology,
    codeSystem(canonical) {
      const url = canonicalUrl(canonical)
      const demanded = checked?.get(url)
      const version = forced?.get(url) ?? canonicalVersion(canonical) ?? demanded ?? given?.get(url)
      if (demanded !== undefined && !fitsVersion(version ?? '', demanded)) {
        const text = `CodeSystem ${url} is asked for in version ${version}, not ${demanded}`
        throw unknownDefinition(text)
      }
      return terminology.codeSystem(named(canonical, version))
    },
    async valueSet(canonical) {
      const version = canonicalVersion(canonical) ?? sets?.get(canonical)
      const valueSet = await terminology.valueSet(named(canonical, version))
      return valueSet && withForcedVersions(valueSet, inputs)
    },
  }
}

/** Applies the forced system versions of the call to the ValueSet. */
export function withForcedVersions(valueSet: ValueSet, inputs: Inputs): ValueSet {
  const forced = readVersions(inputs, FORCED)
  const { compose } = valueSet
  if (forced.size === 0 || compose === undefined) return valueSet
  const forceAll = (parts: readonly Include[]) =>
    parts.map((part) => {
      const version = forced.get(part.system ?? '')
      return version === undefined ? part : { ...part, version }
    })
  const { include = [], exclude } = compose
  const excluded = exclude === undefined ? {} : { exclude: forceAll(exclude) }
  return { ...valueSet, compose: { ...compose, include: forceAll(include), ...excluded } }
}

/** Errors: 400 without a version. */
function readVersions(inputs: Inputs, name: string): ReadonlyMap<string, string> {
  return new Map(
    inputs.texts(name).map((canonical) => {
      const version = canonicalVersion(canonical)
      if (version === undefined) throw badRequest(`"${name}" must be a url and a version`)
      return [canonicalUrl(canonical), version]
    }),
  )
}

/** https://hl7.org/fhir/R4/extension-valueset-supplement.html */
const SUPPLEMENT = 'http://hl7.org/fhir/StructureDefinition/valueset-supplement'

/** Applies the supplements named by the call or the ValueSet. Errors: 400 for an unknown one. */
export async function withSupplements(
  terminology: Terminology,
  inputs: Inputs,
  valueSet?: ValueSet,
): Promise<Terminology> {
  const named = (valueSet?.extension ?? []).flatMap((item) =>
    item.url === SUPPLEMENT && typeof item.valueCanonical === 'string' ? item.valueCanonical : [],
  )
  const canonicals = [...new Set([...named, ...inputs.texts('useSupplement')])]
  if (canonicals.length === 0) return terminology
  const supplements = await Promise.all(
    canonicals.map(async (canonical) => {
      const found = await terminology.codeSystem(canonical)
      if (found !== undefined) return found
      throw unknownDefinition(`CodeSystem ${canonical}, a supplement, is not known`)
    }),
  )
  return {
    ...terminology,
    async codeSystem(canonical) {
      const source = await terminology.codeSystem(canonical)
      if (source === undefined) return undefined
      const own = supplements.filter(({ codeSystem }) =>
        matchesCanonical(source, codeSystem.supplements),
      )
      return own.reduce(supplemented, source)
    },
  }
}

function matchesCanonical({ codeSystem }: CodeSource, canonical: string | undefined): boolean {
  if (canonical === undefined || canonicalUrl(canonical) !== codeSystem.url) return false
  const version = canonicalVersion(canonical)
  return version === undefined || version === codeSystem.version
}

function supplemented(source: CodeSource, supplement: CodeSource): CodeSource {
  return {
    ...source,
    async list(query) {
      const { concepts, isCut } = await source.list(query)
      const codes = concepts.map(({ code }) => code)
      const added = await supplement.list({ codes, limit: codes.length })
      const byCode = new Map(added.concepts.map((node) => [node.code, node]))
      return { concepts: concepts.map((node) => joined(node, byCode.get(node.code))), isCut }
    },
  }
}

function joined(node: ConceptNode, more: ConceptNode | undefined): ConceptNode {
  if (more === undefined) return node
  const { display } = more
  const names = display === undefined ? [] : [{ value: display }]
  return {
    ...node,
    designations: [...node.designations, ...more.designations, ...names],
    properties: [...node.properties, ...more.properties],
  }
}

/** `de` and `de-CH` match each other. */
export function isOfLanguage(language: string | undefined, wanted: string): boolean {
  if (language === undefined) return false
  return `${language}-`.startsWith(`${wanted}-`) || `${wanted}-`.startsWith(`${language}-`)
}

const DISPLAY_LANGUAGE = 'displayLanguage'
const EXPANSION_PARAMETER = 'http://hl7.org/fhir/StructureDefinition/valueset-expansion-parameter'

/**
 * Returns the display languages, best first: those of the parameter, of Accept-Language, or of the ValueSet. Errors:
 * 400 for an invalid parameter.
 */
export function displayLanguages(
  { request }: OperationCall,
  inputs: Inputs,
  valueSet?: ValueSet,
): readonly string[] {
  const asked = inputs.text(DISPLAY_LANGUAGE)
  if (asked === undefined) {
    const accepted = rankedIn(request.headers['accept-language'] ?? '')
    return accepted.length > 0 ? accepted : rankedIn(valueSetLanguage(valueSet) ?? '')
  }
  const wanted = rankedIn(asked)
  if (wanted.length > 0 || /^\*(;|$)/.test(asked)) return wanted
  throw badRequest(`Invalid ${DISPLAY_LANGUAGE}: ${asked}`, DISPLAY_LANGUAGE)
}

/** Without `*`, which HTTP libraries send by default. */
function rankedIn(header: string): readonly string[] {
  return acceptedLanguages(header).filter((name) => LANGUAGE.test(name))
}

const LANGUAGE = /^([A-Za-z]{1,8}(-[A-Za-z0-9]{1,8})*)$/

function valueSetLanguage(valueSet: ValueSet | undefined): string | undefined {
  for (const { url, extension } of valueSet?.compose?.extension ?? []) {
    const parts = url === EXPANSION_PARAMETER ? toObjects(extension) : []
    const partCode = (name: string) => parts.find((part) => part.url === name)?.valueCode
    const value: unknown = partCode('name') === DISPLAY_LANGUAGE ? partCode('value') : undefined
    if (typeof value === 'string') return value
  }
  return valueSet?.language
}

/** Assumed language of displays without one. */
const USUAL = 'en'

interface DisplayNames {
  readonly display: string | undefined
  readonly language: string | undefined
  readonly designations: readonly Designation[]
  readonly otherNames?: readonly Designation[]
}

/** Returns the name in the best available language, otherwise the display. */
export function preferredDisplay(
  languages: readonly string[],
  { display, language = USUAL, designations, otherNames = [] }: DisplayNames,
): string | undefined {
  for (const wanted of languages) {
    if (display !== undefined && language === wanted) return display
    const all = [...designations, ...otherNames]
    const names = all.filter((item) => isOfLanguage(item.language, wanted))
    const exact = names.find((item) => item.language === wanted)
    if (exact === undefined && display !== undefined && isOfLanguage(language, wanted)) break
    if (names.length > 0) return (exact ?? names[0])?.value
  }
  return display
}
