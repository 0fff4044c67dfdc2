/**
 * The lines of a part that several types share, one type behind the other: those that are listed and not tested are
 * asked for together, any other as if it had a part of its own.
 */
import type { RowSink } from '../../../platform/postgres/copy.ts'
import { type NewestLines, newestLines } from './newest.ts'
import type { Lines, Part } from './part.ts'
import { isListedAlone, listedQueries } from './plain.ts'
import { type Reading, readType } from './read.ts'
import { needsMeta, showOf } from './redact.ts'
import { type Selection, selectionOf } from './select.ts'

export interface SharedLines extends Lines {
  /** What comes next is of this type. */
  readonly turn: (type: string) => void
}

/** Those behind `part.after` of `part.type`. */
export async function readShared(
  reading: Reading,
  { types, type: begun, after }: Pick<Part, 'types' | 'type' | 'after'>,
  lines: SharedLines,
): Promise<void> {
  const { store, principal, job } = reading
  const afterIn = (type: string | undefined) => (type === begun ? after : undefined)
  let together: Selection[] = []
  const flush = async () => {
    const some = together
    together = []
    if (some.length > 0) await readTogether(reading, some, afterIn(some[0]?.scene.type), lines)
  }
  for (const type of types.slice(Math.max(0, types.indexOf(begun ?? '')))) {
    const selection = await selectionOf(store, principal, type, job)
    if (selection === undefined) continue
    if (isListedAlone(selection)) {
      together.push(selection)
      continue
    }
    await flush()
    lines.turn(type)
    const part = { type, low: undefined, high: undefined, after: afterIn(type) }
    await readType(reading, selection, part, lines)
  }
  await flush()
}

async function readTogether(
  { job, baseUrl, session }: Reading,
  selections: readonly Selection[],
  after: string | undefined,
  lines: SharedLines,
): Promise<void> {
  const queries = await listedQueries(
    session,
    selections.map((selection, i) => ({
      selection,
      range: { low: i === 0 ? after : undefined, high: undefined },
      needsMeta: needsMeta(selection),
    })),
  )
  let last: NewestLines | undefined
  const leave = () => last?.end()
  const copies = selections.map((selection, i) => {
    const own = newestLines(showOf(selection, job.input.elements, baseUrl), lines)
    const sink: RowSink = (fields) => {
      if (last === own) return own.take(fields)
      // What there is to be told of the type before is told before the next one has its turn.
      const told = leave()
      lines.turn(selection.scene.type)
      last = own
      const wait = own.take(fields)
      return told && wait ? told.then(() => wait) : (told ?? wait)
    }
    return { sql: queries[i] ?? '', sink }
  })
  await session.copyInOrder(copies)
  await leave()
}
