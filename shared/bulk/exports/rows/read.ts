/** The lines of a part of an export, in the order of their row ids. */

import type { Principal } from '../../../access/principal.ts'
import type { CopySession } from '../../../platform/postgres/copy.ts'
import { bufferOf } from '../../../platform/storage/slice.ts'
import type { Store } from '../../../store/rows/context.ts'
import { provenanceChoice, provenanceJudge, provenanceLines } from '../patients/provenance.ts'
import type { PlannedJob } from './jobs.ts'
import { newestLines } from './newest.ts'
import type { Lines, Part, Range } from './part.ts'
import { plainSql } from './plain.ts'
import { needsMeta, showOf } from './redact.ts'
import { changedRows, copySql, type Selection, selectionOf } from './select.ts'

/** What of an export is read, by whom, and how it is shown. */
export interface Reading {
  readonly store: Store
  readonly principal: Principal
  readonly job: PlannedJob
  readonly baseUrl: string
  readonly session: CopySession
}

export type TypedPart = Pick<Part, 'low' | 'high' | 'after'> & { readonly type: string }

/** Those behind `part.after`. */
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
    choice && provenanceLines(provenanceJudge(store, principal, job, selection, choice), line)
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
