/**
 * Decides whether answers enable an item of a QuestionnaireResponse. A question that stands in several repetitions means
 * the nearest one. https://hl7.org/fhir/R4/questionnaire-definitions.html#Questionnaire.item.enableWhen.question
 */

import { getOrInsert } from '../core/cache.ts'
import { toNumber } from '../fhir/json.ts'
import { isObject, toObjects } from '../fhir/resource.ts'

export type Item = Readonly<Record<string, unknown>>

/** Positions in document order. */
interface Place {
  readonly start: number
  /** After everything inside. */
  readonly end: number
}

/** The response, a group or an answer, and its definition. */
export interface Scope {
  readonly definition: Item
  readonly content: Item
  readonly outer: Scope | undefined
}

export class EnableWhen {
  readonly #defined = new Map<string, Item>()
  /** The definition that holds another one. */
  readonly #holders = new Map<Item, Item>()
  readonly #places = new Map<Item, Place>()
  /** By linkId, in document order. */
  readonly #items = new Map<string, Item[]>()
  /** By condition and answered item, or answer. */
  readonly #verdicts = new Map<Item, Map<Item, boolean>>()
  #size = 0

  constructor(questionnaire: Item, response: Item) {
    this.#addDefinitions(questionnaire)
    this.#addItems(response)
  }

  place(content: Item): Place {
    return this.#places.get(content) ?? NOWHERE
  }

  /** Returns by linkId where missing items would stand: before the first item that is defined after them. */
  missingPlaces(
    { content }: Scope,
    linkIds: readonly string[],
    firsts: ReadonlyMap<string, Item>,
  ): ReadonlyMap<string, Place> {
    const found = new Map<string, Place>()
    let next = this.place(content).end
    for (const linkId of linkIds.toReversed()) {
      const first = firsts.get(linkId)
      if (first === undefined) found.set(linkId, { start: next, end: next })
      else next = Math.min(next, this.place(first).start)
    }
    return found
  }

  /** `at`: the place of the item in `scope`. */
  isEnabled({ enableWhen, enableBehavior }: Item, scope: Scope, at: Place = NOWHERE): boolean {
    const conditions = toObjects(enableWhen)
    if (conditions.length === 0) return true
    const holds = (condition: Item) =>
      this.#holds(condition, this.#nearest(String(condition.question), scope, at))
    return enableBehavior === 'all' ? conditions.every(holds) : conditions.some(holds)
  }

  #addDefinitions(definition: Item): void {
    for (const item of toObjects(definition.item)) {
      this.#defined.set(String(item.linkId), item)
      this.#holders.set(item, definition)
      this.#addDefinitions(item)
    }
  }

  #addItems(content: Item): void {
    const start = this.#size++
    for (const item of toObjects(content.item)) {
      const linkId = String(item.linkId)
      const same = this.#items.get(linkId)
      if (same === undefined) this.#items.set(linkId, [item])
      else same.push(item)
      this.#addItems(item)
    }
    for (const answer of toObjects(content.answer)) this.#addItems(answer)
    this.#places.set(content, { start, end: this.#size })
  }

  /** Searches the enclosing answers, then the innermost one that may hold the question: not another repetition. */
  #nearest(question: string, scope: Scope, at: Place): Item | undefined {
    let inside = scope
    while (inside.outer !== undefined && !this.#mayHold(inside.definition, question)) {
      if (inside.definition.linkId === question) return inside.content
      inside = inside.outer
    }
    const { start, end } = this.place(inside.content)
    const items = this.#items.get(question) ?? []
    const before = items[this.#firstFrom(items, at.start) - 1]
    if (before !== undefined && this.place(before).start > start) return before
    const after = items[this.#firstFrom(items, at.end)]
    return after !== undefined && this.place(after).start < end ? after : undefined
  }

  #mayHold(definition: Item, question: string): boolean {
    let holder = this.#defined.get(question)
    while (holder !== undefined && holder !== definition) holder = this.#holders.get(holder)
    return holder !== undefined && definition.linkId !== question
  }

  /** Returns the index of the first item that starts at `position` or later. */
  #firstFrom(items: readonly Item[], position: number): number {
    let [low, high] = [0, items.length]
    while (low < high) {
      const middle = (low + high) >> 1
      const item = items[middle]
      if (item !== undefined && this.place(item).start < position) low = middle + 1
      else high = middle
    }
    return low
  }

  #holds(condition: Item, answered: Item | undefined): boolean {
    if (answered === undefined) return conditionHolds(condition, [])
    const verdicts = getOrInsert(this.#verdicts, condition, () => new Map<Item, boolean>())
    return getOrInsert(verdicts, answered, () => {
      // An item below an answer depends on that answer, not on others to the same question.
      const isAnswer = answered.linkId === undefined
      return conditionHolds(condition, isAnswer ? [answered] : toObjects(answered.answer))
    })
  }
}

const NOWHERE: Place = { start: 0, end: 0 }

function conditionHolds(condition: Item, given: readonly Item[]): boolean {
  const name = Object.keys(condition).find((key) => key.startsWith('answer')) ?? ''
  const wanted = condition[name]
  if (condition.operator === 'exists') return given.length > 0 === wanted
  const values = given.map((answer) => answer[`value${name.slice('answer'.length)}`])
  switch (condition.operator) {
    case '=':
      return values.some((value) => isSame(wanted, value))
    case '!=':
      return values.length > 0 && !values.some((value) => isSame(wanted, value))
    default:
      return values.some((value) => isOrdered(String(condition.operator), value, wanted))
  }
}

function isOrdered(operator: string, value: unknown, wanted: unknown): boolean {
  const [a, b] = [comparable(value), comparable(wanted)]
  if (a === undefined || b === undefined || typeof a !== typeof b) return false
  if (operator === '>') return a > b
  if (operator === '<') return a < b
  return operator === '>=' ? a >= b : a <= b
}

function comparable(value: unknown): number | string | undefined {
  if (typeof value === 'string') return value
  return toNumber(isObject(value) && 'value' in value ? value.value : value)
}

/** Compares a Coding by system and code, a Reference by target. */
export function isSame(one: unknown, other: unknown): boolean {
  if (isObject(one) && isObject(other)) {
    if (one.reference !== undefined) return one.reference === other.reference
    return one.code === other.code && (one.system === other.system || other.system === undefined)
  }
  const [a, b] = [toNumber(one), toNumber(other)]
  return a === undefined ? one === other : a === b
}
