/**
 * Composite parameters: rows under the key of the first component, so that both values come from one
 * element. Two key components make one key; a date, number, quantity or string after the first makes
 * a range or string row whose `p` is Keys.composite. With three components the second and third are
 * each joined to the first only, so a match of all three must be checked on the content.
 */
import type { SearchParameter } from '../fhir/definitions-data.ts'
import { compileExpression, type Leg, type Walk } from '../fhir/path-extract.ts'
import { dateOf, quantityOf, stringsOf, targetOf, tokensOf, urisOf } from '../fhir/values.ts'
import { normaliseString } from '../fhir/values-string.ts'
import type { Derivation } from './derivation.ts'

type Component = NonNullable<SearchParameter['components']>[number]

const RESOURCE = '%resource.'

interface ComponentWalk {
  readonly type: Component['type']
  /** Written `%resource.…`: read from the whole resource, not from the element. */
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
  return leg.bind((element, into) => {
    const values = others.map((other) => valuesOf(other, element, into))
    if (values.every((found) => found.length === 0)) return
    const p = into.p(index)
    const keys = keysOf(first.type, valuesOf(first, element, into), p, into)
    if (keys.length === 0) return
    others.forEach((other, i) => {
      const rows = { p, keys, position: i + 1 }
      joinComponent(other.type, values[i] ?? [], rows, into)
    })
  })
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

function joinComponent(
  kind: Component['type'],
  values: readonly Value[],
  { p, keys, position }: { p: bigint; keys: readonly bigint[]; position: number },
  into: Derivation,
): void {
  if (kind === 'token' || kind === 'reference' || kind === 'uri') {
    for (const second of keysOf(kind, values, p, into)) {
      for (const key of keys) into.others.add(into.keys.composite(key, position, second))
    }
    return
  }
  if (values.length === 0) return
  const rows = keys.map((key) => into.keys.composite(key, position))
  for (const { type, value } of values) {
    if (kind === 'date') {
      const range = dateOf(type, value)
      if (range === undefined) continue
      for (const row of rows) into.ranges.push({ p: row, lo: range.low, hi: range.high, u: 0n })
    } else if (kind === 'string') {
      const parts = stringsOf(type, value).map(normaliseString)
      for (const v of parts) for (const row of rows) if (v !== '') into.strings.push({ p: row, v })
    } else {
      const quantity = quantityOf(type, value)
      if (quantity !== undefined) for (const row of rows) into.range(row, quantity)
    }
  }
}

/**
 * Keys of a token, reference or uri component, as Keys makes them from the composite's own P. The
 * free text of a concept is left out: it would add a row for each value.
 */
function keysOf(
  kind: Component['type'],
  values: readonly Value[],
  p: bigint,
  into: Derivation,
): readonly bigint[] {
  const found: bigint[] = []
  for (const { type, value } of values) {
    if (kind === 'token') {
      for (const token of tokensOf(type, value)) {
        if (token.kind === 'text') continue
        found.push(into.keys.token(p, undefined, token.code))
        if (token.system !== undefined) found.push(into.keys.token(p, token.system, token.code))
      }
    } else if (kind === 'reference') {
      const literal = targetOf(type, value)?.literal
      if (literal !== undefined) found.push(into.keys.reference(p, into.target(literal)))
    } else {
      for (const uri of urisOf(value)) found.push(into.keys.uri(p, uri))
    }
  }
  return found
}

function valuesOf(component: ComponentWalk, element: unknown, into: Derivation): readonly Value[] {
  const values: Value[] = []
  const node = component.isOfResource ? into.resource : element
  for (const walk of component.legs) walk(node, values)
  return values
}
