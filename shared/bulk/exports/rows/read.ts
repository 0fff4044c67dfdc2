/** The lines of a part of an export, in the order of their row ids. */
import type { Principal } from '../../../access/principal.ts'
import type { CopySession, RowSink } from '../../../platform/postgres/copy.ts'
import { bufferOf, type Slice, sliceOf } from '../../../platform/storage/storage.ts'
import type { Store } from '../../../store/rows/context.ts'
import { provenanceChoice, provenanceFilter, provenanceLines } from '../patients/provenance.ts'
import { type ExportPart, type Lines, type PlannedJob, type Range, ROW_ID_BYTES } from './jobs.ts'
import { isListedAlone, listedQueries, plainSql } from './plain.ts'
import { needsMeta, type Show, showOf } from './redact.ts'
import { changedRows, copySql, type Selection, selectionOf } from './select.ts'

/** A read of an export: its job, its member, and how its lines are shown. */
export interface Reading {
  readonly store: Store
  readonly principal: Principal
  readonly job: PlannedJob
  readonly baseUrl: string
  readonly session: CopySession
}

export type TypedPart = Pick<ExportPart, 'low' | 'high' | 'after'> & { readonly type: string }

/** Reads the rows behind `part.after`. */
export async function readPart(reading: Reading, part: TypedPart, lines: Lines): Promise<void> {
  const { store, principal, job } = reading
  const selection = await selectionOf(store, principal, part.type, job)
  if (selection !== undefined) await readType(reading, selection, part, lines)
}

export async function readType(
  { store, principal, job, baseUrl, session }: Reading,
  selection: Selection,
  part: TypedPart,
  lines: Lines,
): Promise<void> {
  const show = showOf(selection, job.input.elements, baseUrl)
  const choice = part.type === 'Provenance' ? provenanceChoice(job.input) : undefined
  const all: Range = { low: part.after ?? part.low, high: part.high }
  const hasMeta = needsMeta(selection)
  const plain = choice ? undefined : await plainSql(session, selection, all, hasMeta)
  if (plain !== undefined) {
    const { take, end } = newestLines(show, lines)
    const { sql, isLarge } = plain
    await (isLarge ? session.copyInOrder([{ sql, sink: take }]) : session.copy(sql, take))
    return end()
  }
  const { line, bad } = lines
  const batches =
    choice &&
    provenanceLines(provenanceFilter(store, principal, job, { own: selection, choice }), line)
  let { low } = all
  let high: string | undefined
  do {
    const range = { low, high: part.high }
    const read = await session.snapshot(async () => {
      const changed = await changedRows(store, session, selection, range)
      const sql = copySql(selection, { low, high: changed.high }, changed.rows, hasMeta)
      await session.copy(sql, ([rowId, content, metaExtension, ruling]) => {
        if (!rowId) throw new Error('A row has no id')
        try {
          if (!content || !metaExtension) throw new SyntaxError('A row has no content')
          const shown = show(content, metaExtension, ruling?.bytes.readInt32BE(ruling.start))
          return batches === undefined ? line(rowId, shown) : batches.add(rowId, content, shown)
        } catch (error) {
          if (error instanceof SyntaxError) return bad(Buffer.from(bufferOf(rowId)))
          throw error
        }
      })
      return changed
    })
    high = read.high
    low = high
  } while (high !== part.high)
  await batches?.end()
}

/** The last version of each resource, from versions in the order of row ids and of their numbers. */
export interface NewestLines {
  /** A version without content takes the resource out. */
  readonly take: RowSink
  end(): Promise<void>
}

/** Platform meta of a row that was read without it. */
const NONE = sliceOf(Buffer.alloc(0))

export function newestLines(show: Show, { line, undo, bad }: Lines): NewestLines {
  const last = Buffer.alloc(ROW_ID_BYTES)
  /** The result so far. */
  let isShown = false
  let isBad = false

  /** False when it is the same. */
  function isNext({ bytes, start }: Slice): boolean {
    let place = ROW_ID_BYTES - 1
    while (place >= 0 && bytes[start + place] === last[place]) place -= 1
    return place >= 0
  }

  /** An unreadable version is reported when no later version has come. */
  function leave(id: Slice): Promise<void> | undefined {
    const reported = isBad ? bad(Buffer.from(last)) : undefined
    for (let place = 0; place < ROW_ID_BYTES; place++) last[place] = id.bytes[id.start + place] ?? 0
    return reported
  }

  return {
    take([id, content, metaExtension = NONE]) {
      if (!id || !metaExtension) throw new Error('A row has no id')
      let reported: Promise<void> | undefined
      if (isNext(id)) reported = leave(id)
      else if (isShown) undo()
      isShown = false
      isBad = false
      if (!content) return reported
      try {
        const wait = line(id, show(content, metaExtension, undefined))
        isShown = true
        return reported && wait ? reported.then(() => wait) : (reported ?? wait)
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error
        isBad = true
        return reported
      }
    },
    async end() {
      if (isBad) await bad(last)
    },
  }
}

export interface SharedLines extends Lines {
  /** The next lines have this type. */
  readonly turn: (type: string) => void
}

/** Reads the rows behind `part.after` of `part.type`. */
export async function readShared(
  reading: Reading,
  { types, type: current, after }: Pick<ExportPart, 'types' | 'type' | 'after'>,
  lines: SharedLines,
): Promise<void> {
  const { store, principal, job } = reading
  const afterIn = (type: string | undefined) => (type === current ? after : undefined)
  let together: Selection[] = []
  const flush = async () => {
    const some = together
    together = []
    if (some.length > 0) await readTogether(reading, some, afterIn(some[0]?.scene.type), lines)
  }
  for (const type of types.slice(Math.max(0, types.indexOf(current ?? '')))) {
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
      // Issues of one type are reported before the next type begins.
      const reported = leave()
      lines.turn(selection.scene.type)
      last = own
      const wait = own.take(fields)
      return reported && wait ? reported.then(() => wait) : (reported ?? wait)
    }
    return { sql: queries[i] ?? '', sink }
  })
  await session.copyInOrder(copies)
  await leave()
}
