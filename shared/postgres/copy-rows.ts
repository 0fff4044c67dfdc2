/**
 * Reads `COPY … TO STDOUT (FORMAT binary)` from the socket, since the driver emits one event per message.
 * https://www.postgresql.org/docs/current/protocol-message-formats.html
 */

import { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import { nextTurn } from '../core/yielding.ts'
import { release } from '../outbound/storage/storage.ts'

// Node allocates 64 KiB per read; one buffer takes all reads here. With TLS each chunk is released after its read.

/** The bytes are valid until the sink returns. */
type ReadSink = (chunk: Buffer) => void

const READ_BYTES = 256 * 1024

const readers = new WeakMap<Duplex, { take: ReadSink | undefined }>()

export function createCopySocket(): Socket {
  const reader: { take: ReadSink | undefined } = { take: undefined }
  const bytes = Buffer.allocUnsafeSlow(READ_BYTES)
  const callback = (length: number) => {
    const chunk = bytes.subarray(0, length)
    if (reader.take === undefined) socket.emit('data', Buffer.from(chunk))
    else reader.take(chunk)
    return true
  }
  const socket = new Socket({ onread: { buffer: bytes, callback } })
  readers.set(socket, reader)
  return socket
}

/** Sends all reads to `take` instead of data listeners, until the returned function is called. */
function takeReads(stream: Duplex, take: ReadSink): () => void {
  const reader = readers.get(stream)
  if (reader !== undefined) {
    reader.take = take
    return () => {
      reader.take = undefined
    }
  }
  const listeners = stream.listeners('data') as ReadSink[]
  const onData = (chunk: Buffer) => {
    take(chunk)
    release(chunk)
  }
  stream.removeAllListeners('data')
  stream.on('data', onData)
  return () => {
    stream.off('data', onData)
    for (const listener of listeners) stream.on('data', listener)
  }
}

/** `start` is the offset of the row message; the bytes are valid until the sink returns. */
type MessageSink = (bytes: Buffer, start: number) => void

const FIRST_REST_BYTES = 64 * 1024
/** PostgreSQL sends 8 KiB at a time; gathering more saves wake-ups on both sides. */
const FEW_BYTES = READ_BYTES / 2
const GATHER_MS = 1
/** The message type, and a length that includes itself. */
const HEADER_BYTES = 5
const [COPY_DATA, READY_FOR_QUERY] = Buffer.from('dZ')

/** Reads until ReadyForQuery; the connection must be idle. `pause` gets a promise to await before more is read. */
export function readRows(
  stream: Duplex,
  sink: MessageSink,
  pause: (wait: Promise<void>) => void,
): void {
  const driver = stream.listeners('data') as ReadSink[]
  let rest = Buffer.allocUnsafeSlow(FIRST_REST_BYTES)
  let held = 0
  let isOver = false
  const turn = createTurns(pause)

  const take = (bytes: Buffer, start: number, end: number) => {
    const letter = bytes[start]
    if (letter === COPY_DATA) return sink(bytes, start + HEADER_BYTES)
    if (letter === READY_FOR_QUERY) {
      isOver = true
      giveBack()
    }
    // The driver keeps these bytes, so it gets a copy.
    for (const listener of driver) listener.call(stream, Buffer.from(bytes.subarray(start, end)))
  }

  /** Appends to the partial message; returns the number of bytes taken. */
  const complete = (chunk: Buffer): number => {
    let used = 0
    const fill = (length: number) => {
      const more = Math.min(length - held, chunk.length - used)
      chunk.copy(rest, held, used, used + more)
      held += more
      used += more
      return held === length
    }
    if (held < HEADER_BYTES && !fill(HEADER_BYTES)) return used
    const length = 1 + rest.readUInt32BE(1)
    if (length > rest.length) {
      const larger = Buffer.allocUnsafeSlow(Math.max(length, 2 * rest.length))
      rest.copy(larger, 0, 0, held)
      rest = larger
    }
    if (!fill(length)) return used
    held = 0
    take(rest, 0, length)
    return used
  }

  const onData = (chunk: Buffer) => {
    let at = held > 0 ? complete(chunk) : 0
    while (chunk.length - at >= HEADER_BYTES) {
      const end = at + 1 + chunk.readUInt32BE(at + 1)
      if (end > chunk.length) break
      take(chunk, at, end)
      at = end
    }
    if (at < chunk.length) complete(chunk.subarray(at))
    turn(chunk.length, isOver)
  }

  const giveBack = takeReads(stream, onData)
}

function createTurns(pause: (wait: Promise<void>) => void) {
  let sinceTurn = 0
  let isLong = false
  return (bytes: number, isOver: boolean): void => {
    sinceTurn += bytes
    const isGathering = isLong && !isOver && bytes < FEW_BYTES
    if (sinceTurn < READ_BYTES && !isGathering) return
    sinceTurn = 0
    isLong = true
    pause(isGathering ? delay(GATHER_MS) : nextTurn())
  }
}
