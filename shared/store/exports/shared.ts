/**
 * The lines of a part that several types share, one type behind the other: of those that are listed and not tested
 * by one statement, of any other as if it had a part of its own.
 */
import { typeName } from '../../fhir/definitions.ts'
import { bufferOf } from '../../slice.ts'
import type { Part } from './parts.ts'
import { isListedAlone, listedTogetherSql } from './plain.ts'
import { type Lines, type Reading, readType } from './read.ts'
import { type Selection, selectionOf } from './select.ts'
import { needsMeta, type Show, showOf } from './show.ts'

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
  { turn, line, bad }: SharedLines,
): Promise<void> {
  const shows = new Map(
    selections.map((selection) => {
      return [selection.scene.type, showOf(selection, job.input.elements, baseUrl)]
    }),
  )
  let last: number | undefined
  let show: Show | undefined
  const sql = listedTogetherSql(selections, after, needsMeta)
  await session.copyInOrder(sql, ([id, content, metaExtension, number]) => {
    if (!id || !content || !metaExtension || !number) throw new Error('A row has no id')
    const type = number.bytes.readInt16BE(number.start)
    if (type !== last) {
      const name = typeName(type)
      turn(name)
      show = shows.get(name)
      last = type
    }
    try {
      return show && line(id, show(content, metaExtension, undefined))
    } catch (error) {
      if (error instanceof SyntaxError) return bad(Buffer.from(bufferOf(id)))
      throw error
    }
  })
}
