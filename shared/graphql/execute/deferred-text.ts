/** Response text with placeholders that are filled when their statements complete. */
import { GraphQLBoolean, GraphQLID, type GraphQLLeafType, GraphQLString } from 'graphql'
import { tooLarge } from '../../core/errors.ts'
import { isDecimal } from '../../fhir/json.ts'
import { Float } from '../schema/elements.ts'

const MAX_CHARACTERS = 52_428_800

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

  /** Returns a placeholder that is written later. */
  hole(): DeferredText {
    const hole = new DeferredText(this.#meter)
    this.#meter.characters += this.text.length
    this.#parts.push(flat(this.text), hole)
    this.text = ''
    return hole
  }

  /** Returns a text to append later. */
  fragment(): DeferredText {
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

  /** Rolls back to this text and size. */
  reset(text: string, size: number): void {
    this.#parts.length = size
    this.text = text
  }

  get isFull(): boolean {
    return this.#meter.characters + this.text.length > MAX_CHARACTERS
  }

  /** Adds the length. Errors: 413. */
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

/** Flattens V8's concatenation tree: cheaper per part than for the whole response at its end. */
function flat(text: string): string {
  return Number.isNaN(text.charCodeAt(0)) ? '' : text
}

export function leafText(type: GraphQLLeafType, value: unknown): string {
  if (typeof value === 'string' && (type === GraphQLString || type === GraphQLID)) {
    return JSON.stringify(value)
  }
  if (type === GraphQLBoolean && typeof value === 'boolean') return value ? 'true' : 'false'
  if (type === Float && isDecimal(value)) return value.toString()
  return JSON.stringify(type.coerceOutputValue(value))
}
