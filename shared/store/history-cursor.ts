/** Where a page of a history ends: the place of a version, sealed. */
import { badRequest } from '../errors.ts'
import type { VersionRow } from './rows.ts'
import { seal, unseal } from './sealed.ts'

export interface Position {
  readonly lu: string
  readonly type: number
  readonly id: string
  readonly ver: number
}

export function writeCursor(key: Buffer, { lu, type, id, ver }: VersionRow): string {
  return seal(key, JSON.stringify([lu.toISOString(), type, id, ver]))
}

/** Errors: 400 for a damaged cursor. */
export function readCursor(key: Buffer, cursor: string): Position {
  const text = unseal(key, cursor)
  if (text === undefined) throw badRequest('Invalid cursor')
  // Written above: nobody else has the key.
  const [lu, type, id, ver] = JSON.parse(text) as [string, number, string, number]
  return { lu, type, id, ver }
}
