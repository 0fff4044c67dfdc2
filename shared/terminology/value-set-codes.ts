/**
 * Evaluates a ValueSet: lists its codes, or finds given codes in it. Expansions, validations and bindings share this
 * lookup, so a code has one version, name and status in all of them.
 * https://hl7.org/fhir/R4/valueset-operation-expand.html
 */
import { tooCostly } from '../core/errors.ts'
import type { CodeSystem, Concept, Designation, Include, ValueSet } from '../fhir/terminology.ts'
import { type ConceptNode, type Fold, folding, hasValue, lower } from './concept-index.ts'
import { isAbstract, isInactive, rankConcepts } from './concepts.ts'
import { type CodeSource, fitsVersion } from './find.ts'
import {
  type Evaluation,
  enterValueSet,
  importedValueSet,
  isCompleteCodeSystem,
  requireConcepts,
  spendWork,
  systemCanonical,
  valueSetCompose,
} from './members.ts'

export interface Code {
  readonly system: string
  readonly version: string | undefined
  readonly code: string
  /** The form in which its system compares codes. */
  readonly folded: string
  readonly display: string | undefined
  readonly language: string | undefined
  readonly designations: readonly Designation[]
  /** Names from the CodeSystem that the ValueSet overrides. */
  readonly otherNames: readonly Designation[]
  readonly isAbstract: boolean
  readonly isInactive: boolean
}

/** Codes as the client spelled them; without a system they match any system. */
interface Candidates {
  readonly system: string | undefined
  readonly codes: readonly string[]
}

interface ExpansionOptions {
  readonly text: string | undefined
  readonly activeOnly: boolean
  /** Leaves out abstract codes. */
  readonly selectableOnly?: boolean | undefined
  /** Keeps each listed spelling of a code whose system ignores case, as for `among`. */
  readonly allSpellings?: boolean | undefined
  /** Minimum number of codes, in order; more are returned where they cost nothing. */
  readonly needed: number
  readonly among?: Candidates | undefined
}

interface Expansion {
  readonly codes: readonly Code[]
  /** True when there are more. */
  readonly isCut: boolean
}

/** Larger expansions are rejected unless only their first codes are requested. */
const MOST_CODES = 20_000

/** Errors: 400 for unknown, circular or too costly definitions. */
export async function expandValueSet(
  outer: Evaluation,
  valueSet: ValueSet,
  wish: ExpansionOptions,
): Promise<Expansion> {
  const inner = enterValueSet(outer, valueSet)
  const { include = [], exclude = [], inactive } = valueSetCompose(valueSet)
  const activeOnly = wish.activeOnly || inactive === false
  const isSpelled = wish.allSpellings === true || wish.among !== undefined
  const found = new Map<string, Code>()
  let isCut = false
  for (const part of include) {
    const list = await expandInclude(inner, part, { ...wish, activeOnly })
    isCut ||= list.isCut
    for (const code of list.codes) {
      const key = codeKey(code, isSpelled ? code.code : code.folded)
      if (!found.has(key)) found.set(key, code)
    }
    if (found.size > MOST_CODES) throw tooMany()
  }
  for (const part of exclude) await removeExcluded(inner, part, { found, include })
  const all = [...found.values()]
  const codes = wish.text === undefined ? all : await rankConcepts(all, wish.text)
  // Codes removed from a cut list may leave too few.
  if (isCut && codes.length < wish.needed) throw tooMany()
  return { codes, isCut }
}

/**
 * Returns the given codes that are in the ValueSet, in their given spelling, once per version of their system. Errors:
 * as `expandValueSet`.
 */
export async function filterMembers(
  outer: Evaluation,
  valueSet: ValueSet,
  among: Candidates,
): Promise<readonly Code[]> {
  const wish = { text: undefined, activeOnly: false, needed: 0, among }
  return (await expandValueSet(outer, valueSet, wish)).codes
}

/** Versions of a system may give one code several meanings. */
function codeKey({ system, version }: Code, code: string): string {
  return `${system}|${version ?? ''}|${code}`
}

function tooMany() {
  return tooCostly(`The expansion has more than ${MOST_CODES} codes; use filter`)
}

const NOTHING: Expansion = { codes: [], isCut: false }

async function expandInclude(
  outer: Evaluation,
  part: Include,
  wish: ExpansionOptions,
): Promise<Expansion> {
  spendWork(outer, 1 + Math.floor((wish.among?.codes.length ?? 0) / 1000))
  const [first, ...others] = part.valueSet ?? []
  if (part.system !== undefined) {
    const list = await expandSystem(outer, part, wish)
    return { ...list, codes: await within(outer, list.codes, part.valueSet ?? []) }
  }
  if (first === undefined) return NOTHING
  const list = await expandValueSet(outer, await importedValueSet(outer, first), wish)
  return { ...list, codes: await within(outer, list.codes, others) }
}

async function expandSystem(
  outer: Evaluation,
  part: Include,
  wish: ExpansionOptions,
): Promise<Expansion> {
  const { text, activeOnly, selectableOnly, among } = wish
  if (among?.system !== undefined && among.system !== part.system) return NOTHING
  const { version } = outer
  const isOfVersion =
    version === undefined || part.version === undefined || fitsVersion(version, part.version)
  if (!isOfVersion) return NOTHING
  if (part.concept !== undefined || among !== undefined) {
    // A policy may hide the codes.
    const concepts = part.concept?.filter(({ code }: Partial<Concept>) => code !== undefined)
    const codes =
      concepts === undefined
        ? await held(outer, part, among?.codes ?? [])
        : await listed(outer, part, { concepts, among })
    const wanted = codes.filter((code) => isWanted(code, wish))
    return { codes: text === undefined ? wanted : await rankConcepts(wanted, text), isCut: false }
  }
  const source = await requireConcepts(outer, part)
  const query = { filters: part.filter, text, activeOnly, selectableOnly, limit: MOST_CODES / 2 }
  const { concepts, isCut } = await source.list(query)
  const codes = concepts.map((concept) => toCode(part, source.codeSystem, concept))
  // A supplement may add the property to concepts of the list.
  return { codes: codes.filter((code) => isWanted(code, wish)), isCut }
}

function isWanted(code: Code, { activeOnly, selectableOnly }: ExpansionOptions): boolean {
  return !(activeOnly && code.isInactive) && !(selectableOnly && code.isAbstract)
}

/** Returns the given codes covered by an include without a concept list, in the client's spelling. */
async function held(
  outer: Evaluation,
  part: Include,
  codes: readonly string[],
): Promise<readonly Code[]> {
  const source = await requireConcepts(outer, part)
  const { codeSystem } = source
  const fold = folding(codeSystem)
  const { concepts } = await source.list({ codes, filters: part.filter, limit: codes.length })
  const nodes = new Map(concepts.map((node) => [fold(node.code), node]))
  // A fragment does not list all codes of its system.
  const hasMore = part.filter === undefined && codeSystem.content === 'fragment'
  return codes.flatMap((code) => {
    const node = nodes.get(fold(code))
    if (node !== undefined) return { ...toCode(part, codeSystem, node), code }
    return hasMore ? unknownCode(part, source, code) : []
  })
}

interface Listed {
  readonly concepts: readonly Concept[]
  readonly among: Candidates | undefined
}

/** Listed codes need no CodeSystem; an available one supplies missing details. */
async function listed(
  outer: Evaluation,
  part: Include,
  { concepts, among }: Listed,
): Promise<readonly Code[]> {
  // The CodeSystem decides on case; it is read only if a code may be listed.
  if (chosenFrom(concepts, among, lower).length === 0) return []
  const source = await outer.terminology.codeSystem(systemCanonical(outer, part))
  const fold = folding(source?.codeSystem)
  const chosen = chosenFrom(concepts, among, fold)
  const codes = chosen.map(({ code }) => code)
  const known = await source?.list({ codes, limit: codes.length })
  const nodes = new Map(known?.concepts.map((node) => [fold(node.code), node]))
  // Drops codes unknown to their system.
  const meant =
    source !== undefined && isCompleteCodeSystem(source)
      ? chosen.filter(({ code }) => nodes.has(fold(code)))
      : chosen
  return meant.map((concept) => {
    const node = nodes.get(fold(concept.code))
    const own =
      source === undefined || node === undefined
        ? unknownCode(part, source, concept.code)
        : { ...toCode(part, source.codeSystem, node), code: concept.code }
    return renamed(own, concept, outer.language)
  })
}

/** Returns the concepts of the given codes, in the client's spelling. */
function chosenFrom(
  concepts: readonly Concept[],
  among: Candidates | undefined,
  fold: Fold,
): readonly Concept[] {
  if (among === undefined) return concepts
  const spellings = Map.groupBy(among.codes, fold)
  return concepts.flatMap((concept) =>
    (spellings.get(fold(concept.code)) ?? []).map((code) => ({ ...concept, code })),
  )
}

function renamed(own: Code, { display, designation }: Concept, language: string | undefined): Code {
  if (display === undefined && designation === undefined) return own
  const spoken = own.language === undefined ? {} : { language: own.language }
  const before = own.display === undefined ? [] : [{ ...spoken, value: own.display }]
  return {
    ...own,
    ...(display === undefined ? {} : { display, language: language ?? own.language }),
    designations: designation?.filter(hasValue) ?? own.designations,
    otherNames: [...before, ...own.designations],
  }
}

function unknownCode({ system = '', version }: Include, of: CodeSource | undefined, code: string) {
  return {
    system,
    version: of?.codeSystem.version ?? version,
    code,
    folded: folding(of?.codeSystem)(code),
    display: undefined,
    language: of?.codeSystem.language,
    designations: [],
    otherNames: [],
    isAbstract: false,
    isInactive: false,
  }
}

export function toCode({ system = '' }: Include, of: CodeSystem, node: ConceptNode): Code {
  return {
    system,
    version: of.version,
    code: node.code,
    folded: folding(of)(node.code),
    display: node.display,
    language: of.language,
    designations: node.designations,
    otherNames: [],
    isAbstract: isAbstract(node),
    isInactive: isInactive(node),
  }
}

async function within(
  outer: Evaluation,
  codes: readonly Code[],
  canonicals: readonly string[],
): Promise<readonly Code[]> {
  let left = codes
  for (const canonical of canonicals) {
    const valueSet = await importedValueSet(outer, canonical)
    const kept = new Set<Code>()
    for (const [system, own] of Map.groupBy(left, (code) => code.system)) {
      const names = own.map(({ code }) => code)
      const members = distinctCodes(await filterMembers(outer, valueSet, { system, codes: names }))
      for (const code of own) if (members.has(code.code)) kept.add(code)
    }
    left = left.filter((code) => kept.has(code))
  }
  return left
}

function distinctCodes(codes: readonly Code[]): ReadonlySet<string> {
  return new Set(codes.map(({ code }) => code))
}

/**
 * With several versions of a system included, an exclude with a version removes only the codes of that version;
 * otherwise it removes its codes of any version.
 */
async function removeExcluded(
  outer: Evaluation,
  part: Include,
  { found, include }: { readonly found: Map<string, Code>; readonly include: readonly Include[] },
): Promise<void> {
  spendWork(outer, Math.floor(found.size / 1000))
  const version = part.version === undefined ? outer.version : undefined
  for (const [system, entries] of Map.groupBy(found, ([, { system }]) => system)) {
    const own = entries.map(([, code]) => code)
    const among = { system, codes: [...distinctCodes(own)] }
    const wish = { text: undefined, activeOnly: false, needed: 0, among }
    const excluded = distinctCodes((await expandInclude({ ...outer, version }, part, wish)).codes)
    const named = include.filter((one) => one.system === system).map((one) => one.version)
    const hasVersions = [named, own.map((code) => code.version)].some(
      (all) => new Set(all).size > 1,
    )
    for (const [key, code] of entries) {
      const isOfVersion =
        !hasVersions || part.version === undefined || fitsVersion(code.version ?? '', part.version)
      if (isOfVersion && excluded.has(code.code)) found.delete(key)
    }
  }
}
