/** ValueSet → its codes. https://hl7.org/fhir/R4/valueset-operation-expand.html */
import { tooCostly } from '../errors.ts'
import type { CodeSystem, Concept, Designation, Include, ValueSet } from '../fhir/terminology.ts'
import type { ConceptNode } from './concept-index.ts'
import { isAbstract, isInactive, ranked } from './concepts.ts'
import {
  composeOf,
  contentOf,
  type Evaluation,
  enter,
  importedValueSet,
  includedOf,
  isWhole,
  membersOf,
  spend,
} from './members.ts'

export interface Code {
  readonly system: string
  readonly version: string | undefined
  readonly code: string
  readonly display: string | undefined
  /** The language of the display. */
  readonly language: string | undefined
  readonly designations: readonly Designation[]
  readonly isAbstract: boolean
  readonly isInactive: boolean
}

export interface Wish {
  readonly text: string | undefined
  readonly activeOnly: boolean
  /** Codes that are wanted at least, in order; more are found where they cost nothing. */
  readonly needed: number
}

export interface Expansion {
  readonly codes: readonly Code[]
  /** There are more than these. */
  readonly isCut: boolean
}

/** Larger expansions are refused, unless their first codes are all that is asked for. */
const MOST_CODES = 20_000

/** Errors: 400 for what is not known, imports itself or is too costly. */
export async function expandValueSet(
  outer: Evaluation,
  valueSet: ValueSet,
  wish: Wish,
): Promise<Expansion> {
  const inner = enter(outer, valueSet)
  const { include = [], exclude = [], inactive } = composeOf(valueSet)
  const activeOnly = wish.activeOnly || inactive === false
  const found = new Map<string, Code>()
  let isCut = false
  for (const part of include) {
    const list = await expandInclude(inner, part, { ...wish, activeOnly })
    isCut ||= list.isCut
    for (const code of list.codes) {
      const key = keyOf(code)
      if (!found.has(key)) found.set(key, code)
    }
    if (found.size > MOST_CODES) throw tooMany()
  }
  for (const part of exclude) await removeExcluded(inner, part, found)
  const all = [...found.values()]
  const codes = wish.text === undefined ? all : await ranked(all, wish.text)
  // Whatever was taken out of a list that is cut may leave too few.
  if (isCut && codes.length < wish.needed) throw tooMany()
  return { codes, isCut }
}

/** Versions of a system may give one code several meanings. */
function keyOf({ system, version, code }: Code): string {
  return `${system}|${version ?? ''}|${code}`
}

function tooMany() {
  return tooCostly(`The expansion has more than ${MOST_CODES} codes; use filter`)
}

async function expandInclude(outer: Evaluation, part: Include, wish: Wish): Promise<Expansion> {
  spend(outer, 1)
  const [first, ...others] = part.valueSet ?? []
  if (part.system !== undefined) {
    const list = await expandSystem(outer, part, wish)
    return { ...list, codes: await within(outer, list.codes, part.valueSet ?? []) }
  }
  if (first === undefined) return { codes: [], isCut: false }
  const list = await expandValueSet(outer, await importedValueSet(outer, first), wish)
  return { ...list, codes: await within(outer, list.codes, others) }
}

async function expandSystem(outer: Evaluation, part: Include, wish: Wish): Promise<Expansion> {
  const { text, activeOnly } = wish
  if (part.concept !== undefined) {
    const codes = await listed(outer, part, part.concept)
    const active = activeOnly ? codes.filter((code) => !code.isInactive) : codes
    return { codes: text === undefined ? active : await ranked(active, text), isCut: false }
  }
  const source = await contentOf(outer, part)
  const limit = MOST_CODES / 2
  const { concepts, isCut } = await source.list({ filters: part.filter, text, activeOnly, limit })
  return {
    codes: concepts.map((concept) => toCode(part, source.codeSystem, concept)),
    isCut,
  }
}

/** Codes that are named one by one need no CodeSystem; where there is one it supplies what is missing. */
async function listed(
  { terminology }: Evaluation,
  part: Include,
  concepts: readonly Concept[],
): Promise<readonly Code[]> {
  const { system = '', version } = part
  const source = await terminology.codeSystem(version ? `${system}|${version}` : system)
  const codes = concepts.map(({ code }) => code)
  const known = await source?.list({ codes, limit: codes.length })
  const nodes = new Map(known?.concepts.map((node) => [node.code, node]))
  // A code that its system does not have means nothing.
  const meant =
    source !== undefined && isWhole(source)
      ? concepts.filter(({ code }) => nodes.has(code))
      : concepts
  return meant.map((concept) => {
    const { code, display, designation } = concept
    const node = nodes.get(code)
    return {
      system,
      version: source?.codeSystem.version ?? version,
      code,
      display: display ?? node?.display,
      language: source?.codeSystem.language,
      designations: designation ?? node?.designations ?? [],
      isAbstract: node !== undefined && isAbstract(node),
      isInactive: node !== undefined && isInactive(node),
    }
  })
}

function toCode({ system = '' }: Include, of: CodeSystem, node: ConceptNode): Code {
  return {
    system,
    version: of.version,
    code: node.code,
    display: node.display,
    language: of.language,
    designations: node.designations,
    isAbstract: isAbstract(node),
    isInactive: isInactive(node),
  }
}

/** Only what is in each of the ValueSets, too. */
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
      const members = await membersOf(outer, valueSet, system, names)
      for (const code of own) if (members.has(code.code)) kept.add(code)
    }
    left = left.filter((code) => kept.has(code))
  }
  return left
}

async function removeExcluded(
  outer: Evaluation,
  part: Include,
  found: Map<string, Code>,
): Promise<void> {
  spend(outer, Math.floor(found.size / 1000))
  for (const [system, own] of Map.groupBy(found.values(), (code) => code.system)) {
    const names = own.map(({ code }) => code)
    const excluded = await includedOf(outer, part, { system, codes: names, activeOnly: false })
    for (const code of own) {
      const isOfVersion = part.version === undefined || part.version === code.version
      if (isOfVersion && excluded.has(code.code)) found.delete(keyOf(code))
    }
  }
}
