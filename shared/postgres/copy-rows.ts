/**
 * Rows of `COPY … TO STDOUT (FORMAT binary)`, as they come from the socket. The driver makes an event of every
 * message, and what it has read lies about until V8 collects garbage, which at 100 MiB a second is 50 MiB.
 * While rows come they are read here, and every other message is handed to the driver.
 * https://www.postgresql.org/docs/current/protocol-message-formats.html
 */

import { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import { nextTurn } from '../core/yielding.ts'
import { release } from '../storage/storage.ts'

/*
 * Reads a connection for COPY. Node gives each 64 KiB that it reads memory of their own, which is found
 * and given back again a thousand times in an export of 95 MiB; here one buffer takes it all. Behind TLS there
 * is no such way, and each chunk is given back once it is read.
 */

/** The bytes are the taker's only until it returns. */
type ReadSink = (chunk: Buffer) => void

/** So much is read at a time: Node itself would read 2 MiB before anybody else's turn. */
const READ_BYTES = 256 * 1024

const readers = new WeakMap<Duplex, { take: ReadSink | undefined }>()

/** Its `data` are copies, until somebody takes what is read. */
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

/** Sends everything that is read to `take`, and not to listeners for data, until the returned function is called. */
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

/** A row has a message of its own, from `start`; its bytes are the taker's only until it returns. */
type MessageSink = (bytes: Buffer, start: number) => void

const FIRST_REST_BYTES = 64 * 1024
/**
 * PostgreSQL sends 8 KiB at a time. To read each as it comes means 128 wake-ups for a MiB, which took 0.1 to 0.4 ms of CPU
 * here and 0.05 to 0.2 in PostgreSQL. So more are let gather.
 */
const FEW_BYTES = READ_BYTES / 2
const GATHER_MS = 1
/** A letter, and the length of what follows, itself included. */
const HEADER_BYTES = 5
const [COPY_DATA, READY_FOR_QUERY] = Buffer.from('dZ')

/**
 * Reads until PostgreSQL is ready for the next statement. Nothing is on its way when it is called. `pause` gets a
 * promise to await before more is read.
 */
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
    // The driver may ask for the next statement at once, and keeps what it is given.
    for (const listener of driver) listener.call(stream, Buffer.from(bytes.subarray(start, end)))
  }

  /** Adds to the message that was begun; answers how much of the chunk belongs to it. */
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
    // The rest is the beginning of a message.
    if (at < chunk.length) complete(chunk.subarray(at))
    turn(chunk.length, isOver)
  }

  const giveBack = takeReads(stream, onData)
}

/** Pauses after the bytes of a turn; in a long answer small chunks are let gather, too. */
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
