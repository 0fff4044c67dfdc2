/** Of versions in the order of row ids and of their numbers the last one of each. */
import type { RowSink } from '../../../platform/postgres/copy.ts'
import { type Slice, sliceOf } from '../../../platform/storage/slice.ts'
import type { Lines } from './part.ts'
import type { Show } from './redact.ts'
import { ROW_ID_BYTES } from './row-id.ts'

export interface NewestLines {
  /** A version without content takes the resource out. */
  readonly take: RowSink
  end(): Promise<void>
}

/** Platform meta of a row that was read without it. */
const NONE = sliceOf(Buffer.alloc(0))

export function newestLines(show: Show, { line, undo, bad }: Lines): NewestLines {
  const last = Buffer.alloc(ROW_ID_BYTES)
  /** What has come of it. */
  let isShown = false
  let isBad = false

  /** False when it is the same. */
  function isNext({ bytes, start }: Slice): boolean {
    let place = ROW_ID_BYTES - 1
    while (place >= 0 && bytes[start + place] === last[place]) place -= 1
    return place >= 0
  }

  /** What cannot be read is told when no later version has come. */
  function leave(id: Slice): Promise<void> | undefined {
    const told = isBad ? bad(Buffer.from(last)) : undefined
    for (let place = 0; place < ROW_ID_BYTES; place++) last[place] = id.bytes[id.start + place] ?? 0
    return told
  }

  return {
    take([id, content, metaExtension = NONE]) {
      if (!id || !metaExtension) throw new Error('A row has no id')
      let told: Promise<void> | undefined
      if (isNext(id)) told = leave(id)
      else if (isShown) undo()
      isShown = false
      isBad = false
      if (!content) return told
      try {
        const wait = line(id, show(content, metaExtension, undefined))
        isShown = true
        return told && wait ? told.then(() => wait) : (told ?? wait)
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error
        isBad = true
        return told
      }
    },
    async end() {
      if (isBad) await bad(last)
    },
  }
}
