/**
 * Composite parameters: rows under the key of the first component, so that all values come from one element. Key
 * components (token, reference, uri) join to one key; the rest make range or string rows whose `p` is Keys.composite
 * of it. With two such, `u` of their rows marks the element. A lone token also has rows under its system.
 */
import type { SearchParameter } from '../../fhir/definitions-data.ts'
import { searchedText } from '../../fhir/searched-text.ts'
import {
  extractDateRange,
  extractQuantity,
  extractStrings,
  extractTarget,
  extractTokens,
  extractUris,
} from '../../fhir/values.ts'
import { compileExpression, type Leg, type Walk } from '../../fhirpath/extract.ts'
import type { Derivation } from './derivation.ts'

type Component = NonNullable<SearchParameter['components']>[number]

const RESOURCE = '%resource.'

interface ComponentWalk {
  readonly type: Component['type']
  /** Written `%resource.…`: read from the resource, not from the element. */
  readonly isOfResource: boolean
  readonly legs: readonly Walk<Value[]>[]
}

interface Value {
  readonly type: string
  readonly value: unknown
}

export function planComposite(
  type: string,
  parameter: SearchParameter,
  index: number,
  leg: Leg,
): Walk<Derivation> | undefined {
  const [first, ...others] = (parameter.components ?? []).map((component) =>
    compileComponent(type, leg.type, component),
  )
  if (first === undefined || others.length === 0) return undefined
  const joined = others.map((component, i) => ({ component, position: i + 1 }))
  const exact = joined.filter(({ component }) => isKey(component))
  const ranged = joined.filter(({ component }) => !isKey(component))
  if (first.type === 'token' && exact.length === 0) {
    return leg.bind((element, into) => {
      const rowsAt = (position: number) => {
        const codings = componentCodings(componentValues(first, element, into), into.p(index), into)
        return codings.map((coding) => linked(coding, position, into))
      }
      addRanges(ranged, element, rowsAt, into)
    })
  }
  return leg.bind((element, into) => {
    const p = into.p(index)
    const others = exact.map(({ component, position }) => {
      const values = componentValues(component, element, into)
      return { position, keys: componentKeys(component.type, values, p, into) }
    })
    if (others.some((other) => other.keys.length === 0)) return
    let keys = componentKeys(first.type, componentValues(first, element, into), p, into)
    for (const { position, keys: seconds } of others) {
      keys = keys.flatMap((key) => seconds.map((it) => into.keys.composite(key, position, it)))
    }
    if (ranged.length === 0) for (const key of keys) into.others.add(key)
    addRanges(ranged, element, (at) => keys.map((key) => into.keys.composite(key, at)), into)
  })
}

function addRanges(
  ranged: readonly { readonly component: ComponentWalk; readonly position: number }[],
  element: unknown,
  rowsAt: (position: number) => readonly bigint[],
  into: Derivation,
): void {
  const mark = ranged.length > 1 ? BigInt(into.ranges.length + 1) : undefined
  for (const { component, position } of ranged) {
    const values = componentValues(component, element, into)
    if (values.length === 0) continue
    addRows(component.type, values, rowsAt(position), { mark, into })
  }
}

/** A token component: its key in any system, and in its own system if it has one. */
interface Coding {
  readonly any: bigint
  readonly exact: bigint | undefined
  readonly system: string
  readonly code: string
}

function componentCodings(
  values: readonly Value[],
  p: bigint,
  into: Derivation,
): readonly Coding[] {
  return values.flatMap(({ type, value }) =>
    extractTokens(type, value).flatMap(({ kind, system, code }) => {
      if (kind === 'text') return []
      const any = into.keys.token(p, undefined, code)
      const exact = system === undefined ? undefined : into.keys.token(p, system, code)
      return [{ any, exact, system: system ?? '', code }]
    }),
  )
}

function linked({ any, exact, system, code }: Coding, position: number, into: Derivation): bigint {
  const plain = into.keys.composite(any, position)
  if (exact === undefined) return plain
  const own = into.keys.composite(exact, position)
  return into.code(plain, own, system, code) ? own : plain
}

function isKey({ type }: ComponentWalk): boolean {
  return type === 'token' || type === 'reference' || type === 'uri'
}

function compileComponent(
  type: string,
  parent: string,
  { type: kind, expression }: Component,
): ComponentWalk {
  const isOfResource = expression.startsWith(RESOURCE)
  const path = isOfResource ? expression.slice(RESOURCE.length) : expression
  const legs = compileExpression(isOfResource ? type : parent, path).map((leg) =>
    leg.bind<Value[]>((value, found) => {
      found.push({ type: leg.type, value })
    }),
  )
  return { type: kind, isOfResource, legs }
}

function addRows(
  kind: Component['type'],
  values: readonly Value[],
  rows: readonly bigint[],
  { mark, into }: { readonly mark: bigint | undefined; readonly into: Derivation },
): void {
  for (const { type, value } of values) {
    if (kind === 'date') {
      const range = extractDateRange(type, value)
      if (range === undefined) continue
      const { low: lo, high: hi } = range
      for (const p of rows) into.ranges.push({ p, lo, hi, u: mark ?? 0n })
    } else if (kind === 'string') {
      const texts = extractStrings(type, value).map(searchedText)
      const found = texts.flatMap(({ start, words }) => (start === '' ? [] : [start, ...words]))
      for (const v of found) for (const p of rows) into.strings.push({ p, v })
    } else {
      const quantity = extractQuantity(type, value)
      if (quantity === undefined) continue
      const { low: lo, high: hi } = quantity
      for (const p of rows) {
        if (mark === undefined) into.range(p, quantity)
        else into.ranges.push({ p, lo, hi, u: mark })
      }
    }
  }
}

/** Leaves out the text of a concept, which would add a row per value. */
function componentKeys(
  kind: Component['type'],
  values: readonly Value[],
  p: bigint,
  into: Derivation,
): readonly bigint[] {
  const found: bigint[] = []
  for (const { type, value } of values) {
    if (kind === 'token') {
      for (const token of extractTokens(type, value)) {
        if (token.kind === 'text') continue
        found.push(into.keys.token(p, undefined, token.code))
        if (token.system !== undefined) found.push(into.keys.token(p, token.system, token.code))
      }
    } else if (kind === 'reference') {
      const literal = extractTarget(type, value)?.literal
      if (literal !== undefined) found.push(into.keys.reference(p, into.target(literal)))
    } else {
      for (const uri of extractUris(value)) found.push(into.keys.uri(p, uri))
    }
  }
  return found
}

function componentValues(
  component: ComponentWalk,
  element: unknown,
  into: Derivation,
): readonly Value[] {
  const values: Value[] = []
  const node = component.isOfResource ? into.resource : element
  for (const walk of component.legs) walk(node, values)
  return values
}
