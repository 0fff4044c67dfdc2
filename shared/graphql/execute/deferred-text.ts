/** The text of an answer with holes, which are filled when their statements have been answered. */
import { GraphQLBoolean, GraphQLID, type GraphQLLeafType, GraphQLString } from 'graphql'
import { tooLarge } from '../../core/errors.ts'
import { isDecimal } from '../../fhir/json.ts'
import { Float } from '../schema/elements.ts'

const MAX_CHARACTERS = 52_428_800

/** Characters of all parts of one answer. */
interface Meter {
  characters: number
}

export class DeferredText {
  text = ''
  readonly #parts: (string | DeferredText)[] = []
  readonly #meter: Meter

  constructor(meter: Meter = { characters: 0 }) {
    this.#meter = meter
  }

  /** Leaves a place that is written later. */
  hole(): DeferredText {
    const hole = new DeferredText(this.#meter)
    this.#meter.characters += this.text.length
    this.#parts.push(flat(this.text), hole)
    this.text = ''
    return hole
  }

  /** A text of the same answer that stands nowhere yet. */
  apart(): DeferredText {
    return new DeferredText(this.#meter)
  }

  append(part: DeferredText): void {
    if (part.size === 0) {
      this.text += part.text
      return
    }
    this.#meter.characters += this.text.length
    this.#parts.push(flat(this.text), part)
    this.text = ''
  }

  get size(): number {
    return this.#parts.length
  }

  /** Forgets all that was written since the text and the size were these. */
  reset(text: string, size: number): void {
    this.#parts.length = size
    this.text = text
  }

  /** True when the answer would be longer than it may be. */
  get isFull(): boolean {
    return this.#meter.characters + this.text.length > MAX_CHARACTERS
  }

  /** Counts what was written. Errors: 413. */
  close(): void {
    this.#meter.characters += this.text.length
    if (this.#meter.characters > MAX_CHARACTERS) throw tooLarge()
    this.text = flat(this.text)
  }

  toString(): string {
    const all: string[] = []
    this.#collect(all)
    return all.join('')
  }

  #collect(all: string[]): void {
    for (const part of this.#parts) {
      if (typeof part === 'string') all.push(part)
      else part.#collect(all)
    }
    all.push(this.text)
  }
}

/**
 * V8 keeps a text that was added up as a tree until somebody looks at it: better at a part in its own turn than at all
 * of the answer at its end.
 */
function flat(text: string): string {
  return Number.isNaN(text.charCodeAt(0)) ? '' : text
}

/** A value that has no parts, as JSON. */
export function leafText(type: GraphQLLeafType, value: unknown): string {
  if (typeof value === 'string' && (type === GraphQLString || type === GraphQLID)) {
    return JSON.stringify(value)
  }
  if (type === GraphQLBoolean && typeof value === 'boolean') return value ? 'true' : 'false'
  if (type === Float && isDecimal(value)) return value.toString()
  return JSON.stringify(type.coerceOutputValue(value))
}
