/**
 * Statements whose plans PostgreSQL keeps, as many as there is room for on a connection: those that are asked for
 * most, of late. What was asked for longest ago goes when others have been asked for often since. They get their
 * names when they are sent, each of its own and never again, and a connection closes what has gone before it
 * prepares another, so that it holds no more than there is room for.
 */
import { Cache } from '../core/cache.ts'
import { type Columns, type RawConnection, type Sent, skipDescribe } from './pool.ts'
import type { Statement, WireConnection } from './statement.ts'

/** The length of all texts that a connection caches: about 150 bytes a letter in PostgreSQL. */
const MOST_LETTERS = 120_000
/** The length of all texts whose uses are counted. */
const MOST_COUNTED = 4 * MOST_LETTERS
/** PostgreSQL makes a plan for values five times first, so what goes again soon is prepared in vain. */
const OFTEN = 8

interface Kept {
  readonly name: string
  readonly text: string
  usedAt: number
}

/** Uses since then. */
interface Counted {
  readonly since: number
  uses: number
}

interface Held {
  readonly kept: Map<Kept, Columns>
  /** By fixed names, which stay. */
  readonly named: Map<string, Columns>
  readonly wire: WireConnection
  /** Names that PostgreSQL has still to answer for. */
  readonly closing: string[]
}

export class CachedStatements {
  readonly #kept = new Cache<string, Kept>({
    name: 'prepared-statements',
    max: MOST_LETTERS,
    size: statementLength,
  })
  readonly #counted = new Cache<string, Counted>({
    name: 'counted-statements',
    max: MOST_COUNTED,
    size: statementLength,
  })
  readonly #held = new WeakMap<RawConnection, Held>()
  #asked = 0
  #names = 0

  /** With its name if it has one. To be sent at once: the next may take the name away. */
  named(connection: RawConnection, statement: Statement): Sent {
    const { name, isPreparable, text, values } = statement
    if (name !== undefined) {
      const { named, wire } = this.#heldBy(connection)
      return { name, text, values, columns: columnsIn(named, name, wire) }
    }
    const kept = isPreparable === true ? this.#keptOf(text) : undefined
    if (kept === undefined) return statement
    const held = this.#heldBy(connection)
    if (!held.kept.has(kept)) this.#closeGone(connection, held)
    const columns = columnsIn(held.kept, kept, held.wire)
    return { name: kept.name, text: kept.text, values, columns }
  }

  /** Has all of them prepared again, under other names: tables have grown so much that other plans may be right. */
  renew(): void {
    for (const [text, kept] of this.#kept.dump()) {
      this.#names += 1
      this.#kept.set(text, { ...kept.value, name: `kept-${this.#names}` })
    }
  }

  #keptOf(text: string): Kept | undefined {
    this.#asked += 1
    const known = this.#kept.get(text)
    if (known !== undefined) known.usedAt = this.#asked
    if (known !== undefined || !this.#isOften(text)) return known
    this.#counted.delete(text)
    this.#names += 1
    const kept = { name: `kept-${this.#names}`, text, usedAt: this.#asked }
    // Lets go of those that were used longest ago.
    this.#kept.set(text, kept)
    return kept
  }

  #heldBy(connection: RawConnection): Held {
    const known = this.#held.get(connection)
    if (known !== undefined) return known
    const wire = skipDescribe(connection.connection)
    const held: Held = { kept: new Map(), named: new Map(), wire, closing: [] }
    this.#held.set(connection, held)
    // Only now: until then pg may hear that one of them is prepared.
    connection.connection.on('closeComplete', () => {
      delete connection.connection.parsedStatements[held.closing.shift() ?? '']
    })
    return held
  }

  /** Counts a use. True after so many since the last one of what would have to go. */
  #isOften(text: string): boolean {
    if (text.length > MOST_LETTERS) return false
    const counted = this.#counted.get(text)
    if (counted === undefined || counted.since <= this.#lastUseBefore(text.length)) {
      this.#counted.set(text, { since: this.#asked, uses: 1 })
      return false
    }
    counted.uses += 1
    return counted.uses >= OFTEN
  }

  /** The last use of the texts that would have to go for so many letters; 0 where there is room. */
  #lastUseBefore(letters: number): number {
    let room = MOST_LETTERS - this.#kept.calculatedSize
    let last = 0
    for (const one of this.#kept.rvalues()) {
      if (one === undefined || room >= letters) break
      room += one.text.length
      last = one.usedAt
    }
    return last
  }

  /**
   * Closed in the order of what is sent, so after the answers of what used it, and without a round trip or an error:
   * https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY
   */
  #closeGone({ connection }: RawConnection, { kept, closing }: Held): void {
    for (const one of kept.keys()) {
      if (this.#kept.peek(one.text) === one) continue
      kept.delete(one)
      closing.push(one.name)
      connection.close({ type: 'S', name: one.name })
    }
  }
}

function columnsIn<Key>(held: Map<Key, Columns>, key: Key, wire: WireConnection): Columns {
  const known = held.get(key)
  if (known !== undefined) return known
  const columns = { known: undefined, wire }
  held.set(key, columns)
  return columns
}

function statementLength(_value: unknown, text: string): number {
  return text.length
}
