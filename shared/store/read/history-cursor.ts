/** Where a page of a history ends: the place of a version, sealed. */
import { seal, unseal } from '../../access/credentials/sealing.ts'
import { badRequest } from '../../errors.ts'
import type { VersionRow } from '../rows/rows.ts'

export interface Position {
  readonly lu: string
  readonly type: number
  readonly id: string
  readonly ver: number
}

export function writeCursor(key: Buffer, { lu, type, id, ver }: VersionRow): string {
  return seal(JSON.stringify([lu.toISOString(), type, id, ver]), key).toString('base64url')
}

/** Errors: 400 for a damaged cursor. */
export function readCursor(key: Buffer, cursor: string): Position {
  // Written above: nobody else has the key.
  const [lu, type, id, ver] = JSON.parse(opened(key, cursor)) as [string, number, string, number]
  return { lu, type, id, ver }
}

function opened(key: Buffer, cursor: string): string {
  try {
    return unseal(Buffer.from(cursor, 'base64url'), key).toString()
  } catch {
    throw badRequest('Invalid cursor', '_cursor')
  }
}
