/**
 * Reads a connection for COPY. Node gives each 64 KiB that it reads memory of their own, which is found
 * and given back again a thousand times in an export of 95 MiB; here one buffer takes it all. Behind TLS there
 * is no such way, and each chunk is given back once it is read.
 */
import { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { release } from '../storage/release.ts'

/** The bytes are the taker's only until it returns. */
export type ReadSink = (chunk: Buffer) => void

/** So much is read at a time: Node itself would read 2 MiB before anybody else's turn. */
export const READ_BYTES = 256 * 1024

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
export function takeReads(stream: Duplex, take: ReadSink): () => void {
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
