/** The writing statement that creates and updates share, and its answer. */
import { badRequest, conflict } from '../../errors.ts'
import { SqlError } from '../../platform/postgres/sql-error.ts'
import { timeText } from '../rows/content.ts'
import { isLegalId, normalId, type Store } from '../rows/context.ts'
import { HOLDER } from '../rows/side-rows.ts'
import type { WriteResult } from '../rows/version.ts'
import { InheritsAccounts } from './accounts.ts'
import type { Prepared } from './prepare.ts'
import { invalidReferences } from './references.ts'

/** The time of the write; undefined when an update found another version than it expected. */
export async function submit(
  store: Store,
  type: string,
  prepared: Prepared,
): Promise<Date | undefined> {
  const { write, references } = prepared
  // A statement behind the writes looks for them, before the writes are answered.
  store.deferred?.push(...references)
  const rows = await store.submit(write).catch((error: unknown) => {
    const isSecond = error instanceof SqlError && error.constraint === 'unique_key_pkey'
    throw isSecond ? conflict(`${type} with this value already exists`) : error
  })
  if (rows.some(({ target }) => target === HOLDER)) throw new InheritsAccounts()
  const missing = rows.flatMap(({ target }) => target ?? [])
  if (missing.length > 0) {
    throw invalidReferences(missing.map((place) => references[place]?.path ?? type))
  }
  if (rows.length > 0) for (const { k } of write.rows?.codes ?? []) store.seenCodes.add(k)
  if (rows.some(({ hasEvents }) => hasEvents)) store.announce()
  if (rows.length > 0) {
    const { project, parts } = write
    for (const { part, row } of parts) await store.written(part, { project, row })
  }
  return rows[0]?.lu ?? undefined
}

/** Returns the written version, which the next change of it need not read. */
export function resultOf(
  { recent }: Store,
  type: string,
  id: string,
  { write }: Prepared,
  lastUpdated: Date,
  outcome: WriteResult['outcome'],
): WriteResult {
  const { ver, metaAt, metaExtension } = write
  const content = write.head + timeText(lastUpdated) + write.tail
  recent?.keep({
    project: write.project,
    type: write.type,
    id: write.id,
    ver,
    lu: lastUpdated,
    content,
    meta_at: metaAt,
    meta_ext: metaExtension,
  })
  return { type, id, ver, lastUpdated, content, metaAt, metaExtension, outcome }
}

/** The row is there, or an id of it. */
export function isTaken(error: unknown): boolean {
  return (
    error instanceof SqlError &&
    /^(version|resource|idx_string|idx_range)_pkey$/.test(error.constraint ?? '')
  )
}

/** Errors: 400. */
export function givenId(id: string): string {
  if (!isLegalId(id)) throw badRequest('Incorrect resource ID')
  return normalId(id)
}
