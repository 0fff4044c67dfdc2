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

interface ComponentWalk {
  readonly type: Component['type']
  readonly legs: readonly { readonly type: string; readonly walk: Walk<unknown[]> }[]
}

export function planComposite(
  parameter: SearchParameter,
  index: number,
  leg: Leg,
): Walk<Derivation> | undefined {
  const [first, ...others] = (parameter.components ?? []).map((component) =>
    compileComponent(leg.type, component),
  )
  if (first === undefined || others.length === 0) return undefined
  return leg.bind((element, into) => {
    const p = into.p(index)
    const keys = keysOf(first, element, p, into)
    if (keys.length === 0) return
    others.forEach((other, i) => {
      joinComponent(other, element, p, keys, i + 1, into)
    })
  })
}

function compileComponent(parent: string, { type, expression }: Component): ComponentWalk {
  const legs = compileExpression(parent, expression).map((leg) => ({
    type: leg.type,
    walk: leg.bind<unknown[]>((value, found) => {
      found.push(value)
    }),
  }))
  return { type, legs }
}

function joinComponent(
  component: ComponentWalk,
  element: unknown,
  p: bigint,
  keys: readonly bigint[],
  position: number,
  into: Derivation,
): void {
  if (component.type === 'token' || component.type === 'reference' || component.type === 'uri') {
    const seconds = keysOf(component, element, p, into)
    for (const key of keys) {
      for (const second of seconds) into.others.add(into.keys.composite(p, key, position, second))
    }
    return
  }
  const rows = keys.map((key) => into.keys.composite(p, key, position))
  for (const { type, value } of valuesOf(component, element)) {
    if (component.type === 'date') {
      const range = dateOf(type, value)
      if (range === undefined) continue
      for (const row of rows) into.ranges.push({ p: row, lo: range.low, hi: range.high, u: 0n })
    } else if (component.type === 'string') {
      const parts = stringsOf(type, value).map(normaliseString)
      for (const v of parts) for (const row of rows) if (v !== '') into.strings.push({ p: row, v })
    } else {
      const quantity = quantityOf(type, value)
      if (quantity !== undefined) for (const row of rows) into.range(row, quantity)
    }
  }
}

/** Keys of a token, reference or uri component, as Keys makes them from the composite's own P. */
function keysOf(
  component: ComponentWalk,
  element: unknown,
  p: bigint,
  into: Derivation,
): readonly bigint[] {
  const keys: bigint[] = []
  for (const { type, value } of valuesOf(component, element)) {
    if (component.type === 'token') {
      for (const { system, code } of tokensOf(type, value)) {
        keys.push(into.keys.token(p, undefined, code))
        if (system !== undefined) keys.push(into.keys.token(p, system, code))
      }
    } else if (component.type === 'reference') {
      const literal = targetOf(type, value)?.literal
      if (literal !== undefined) keys.push(into.keys.reference(p, into.target(literal)))
    } else {
      for (const uri of urisOf(value)) keys.push(into.keys.uri(p, uri))
    }
  }
  return keys
}

function valuesOf(
  component: ComponentWalk,
  element: unknown,
): readonly { readonly type: string; readonly value: unknown }[] {
  return component.legs.flatMap(({ type, walk }) => {
    const found: unknown[] = []
    walk(element, found)
    return found.map((value) => ({ type, value }))
  })
}
