/**
 * Terminology as an operation wants it: CodeSystems in certain versions, with what supplements add to their concepts.
 * https://hl7.org/fhir/R4/valueset-operation-expand.html, https://hl7.org/fhir/R4/codesystem.html#supplements
 */
import { badRequest, unknownDefinition } from '../errors.ts'
import { urlOf, versionOf } from '../fhir/resource.ts'
import type { Designation, ValueSet } from '../fhir/terminology.ts'
import type { Inputs, ParameterDefinition } from '../request/parameters.ts'
import type { ConceptNode } from './concept-index.ts'
import { type CodeSource, fitsVersion, type Terminology } from './find.ts'

const USE_SUPPLEMENT = 'useSupplement'

export const SUPPLEMENTS: readonly ParameterDefinition[] = [
  { name: USE_SUPPLEMENT, kind: 'text', many: true },
]

/** `system|version`, as many as there are systems. */
export const VERSIONS: readonly ParameterDefinition[] = [
  'system-version',
  'check-system-version',
  'force-system-version',
  'default-valueset-version',
].map((name) => ({ name, kind: 'text', many: true }))

/** A version that is given applies where none is written; one that is forced applies always. */
export function inVersions(terminology: Terminology, inputs: Inputs): Terminology {
  const [given, checked, forced, sets] = VERSIONS.map(({ name }) => versionsOf(inputs, name))
  const named = (canonical: string, version: string | undefined) =>
    version === undefined ? canonical : `${urlOf(canonical)}|${version}`
  return {
    ...terminology,
    codeSystem(canonical) {
      const url = urlOf(canonical)
      const demanded = checked?.get(url)
      const version = forced?.get(url) ?? versionOf(canonical) ?? demanded ?? given?.get(url)
      if (demanded !== undefined && !fitsVersion(version ?? '', demanded)) {
        throw badRequest(`CodeSystem ${url} is asked for in version ${version}, not ${demanded}`)
      }
      return terminology.codeSystem(named(canonical, version))
    },
    valueSet(canonical) {
      const version = versionOf(canonical) ?? sets?.get(canonical)
      return terminology.valueSet(named(canonical, version))
    },
  }
}

/** Errors: 400 for one without a version. */
function versionsOf(inputs: Inputs, name: string): ReadonlyMap<string, string> {
  return new Map(
    inputs.texts(name).map((canonical) => {
      const version = versionOf(canonical)
      if (version === undefined) throw badRequest(`"${name}" must be a url and a version`)
      return [urlOf(canonical), version]
    }),
  )
}

/** https://hl7.org/fhir/R4/extension-valueset-supplement.html */
const SUPPLEMENT = 'http://hl7.org/fhir/StructureDefinition/valueset-supplement'

/** With the supplements that the call or the ValueSet names. Errors: 400 when one is not known. */
export async function withSupplements(
  terminology: Terminology,
  inputs: Inputs,
  valueSet?: ValueSet,
): Promise<Terminology> {
  const named = (valueSet?.extension ?? []).flatMap((item) =>
    item.url === SUPPLEMENT && typeof item.valueCanonical === 'string' ? item.valueCanonical : [],
  )
  const canonicals = [...new Set([...named, ...inputs.texts(USE_SUPPLEMENT)])]
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
        supplementsOf(source, codeSystem.supplements),
      )
      return own.reduce(supplemented, source)
    },
  }
}

function supplementsOf({ codeSystem }: CodeSource, canonical: string | undefined): boolean {
  if (canonical === undefined || urlOf(canonical) !== codeSystem.url) return false
  const version = versionOf(canonical)
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

/** `de` names `de-CH`, too. */
export function isOfLanguage({ language }: Designation, wanted: string | undefined): boolean {
  return (
    wanted !== undefined && (language === wanted || language?.startsWith(`${wanted}-`) === true)
  )
}

/** Returns what a concept is called in a language, where it has such a name. */
export function translated(
  designations: readonly Designation[],
  language: string | undefined,
): string | undefined {
  const names = designations.filter((item) => isOfLanguage(item, language))
  return (names.find((item) => item.language === language) ?? names[0])?.value
}
