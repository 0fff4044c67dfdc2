/** A part of an export, which one worker writes. */
import type { Slice } from '../../../platform/storage/storage.ts'

export interface ExportPart {
  readonly n: number
  readonly kind: PartKind
  readonly epoch: number
  /** Taken so often since it last came forward, and thrown so often. */
  readonly tries: number
  readonly failures: number
  /** The type that `after` belongs to, in a shared part. */
  readonly type: string | undefined
  /** The types of a shared part, in the order in which they are written. */
  readonly types: readonly string[]
  /** Row ids: above `low`, up to `high`; undefined has no bound. */
  readonly low: string | undefined
  readonly high: string | undefined
  /** The last row that is written. */
  readonly after: string | undefined
}

/** `plan` makes the others, of which `shared` is several types; `close` is taken when they are done. */
export type PartKind = 'plan' | 'output' | 'shared' | 'deleted' | 'close'

/** Row ids above `low`, up to `high`. */
export interface Range {
  readonly low: string | undefined
  readonly high: string | undefined
  /** And among these. */
  readonly ids?: readonly string[]
}

export interface Lines {
  readonly line: LineSink
  /** Takes the last line back. */
  readonly undo: () => void
  readonly bad: BadRowSink
}

/** Takes a row id and its line, which are its own only until it returns; a promise: no more until then. */
export type LineSink = (id: Slice, line: Slice) => Promise<void> | undefined

/** Takes the row id of what cannot be read. */
export type BadRowSink = (id: Buffer) => Promise<void>

/** Row ids as COPY gives them, and as text. */

export const ROW_ID_BYTES = 16

export function uuidOf(bytes: Buffer): string {
  const hex = bytes.toString('hex')
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

export function bytesOf(uuid: string): Buffer {
  return Buffer.from(uuid.replaceAll('-', ''), 'hex')
}
