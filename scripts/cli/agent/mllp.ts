/** Listens for HL7v2 messages of devices over MLLP, and sends messages to devices. */
import { once } from 'node:events'
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { type Hl7Message, Hl7Message as Message } from '@medplum/core'
import type { Hl7Connection, Hl7ErrorEvent, Hl7MessageEvent } from '@medplum/hl7'
import { note } from '../print.ts'

/** A message of a device that waits for its acknowledgement. */
export interface Received {
  readonly message: Hl7Message
  /** Address and port of the device. */
  readonly remote: string
  /** Aborts when the device has disconnected. */
  readonly signal: AbortSignal
}

/** Returns the acknowledgement; undefined for none, after which the device sends the message again. */
export type Answer = (received: Received) => Promise<Hl7Message | undefined>

export interface Listening {
  readonly address: string
  close(): Promise<void>
}

interface MllpAddress {
  readonly host: string
  readonly port: number
  readonly encoding: string
  readonly isEnhanced: boolean
}

const LISTENED = 'Expected an address such as mllp://0.0.0.0:2575'

/** Options: `?enhanced=true` also sends a commit acknowledgement; `&encoding=iso-8859-1`. Errors: an invalid address. */
export function parseMllp(address: string): MllpAddress {
  const url = URL.parse(address)
  if (url?.protocol !== 'mllp:' || url.port === '') throw new Error(LISTENED)
  return {
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: Number(url.port),
    encoding: url.searchParams.get('encoding') ?? 'utf-8',
    isEnhanced: url.searchParams.get('enhanced') === 'true',
  }
}

/** Messages of a connection are answered in their order. Port 0 selects a free one. Errors: those of the address. */
export async function listenMllp(address: string, answer: Answer): Promise<Listening> {
  const { host, port, encoding, isEnhanced } = parseMllp(address)
  // Only this command needs the package.
  const { Hl7Connection: Connection } = await import('@medplum/hl7')
  const open = new Set<Socket>()
  const server = createServer((socket) => {
    open.add(socket)
    socket.once('close', () => open.delete(socket))
    serve(new Connection(socket, encoding, isEnhanced), answer)
  })
  server.listen(port, host)
  await once(server, 'listening')
  return {
    address: `mllp://${host}:${(server.address() as AddressInfo).port}`,
    close: () => closeAll(server, open),
  }
}

async function closeAll(server: Server, open: ReadonlySet<Socket>): Promise<void> {
  const closed = new Promise((resolve) => server.close(resolve))
  for (const socket of open) socket.destroy()
  await closed
}

function serve(connection: Hl7Connection, answer: Answer): void {
  const { socket } = connection
  const remote = `${socket.remoteAddress}:${socket.remotePort}`
  const gone = new AbortController()
  let last = Promise.resolve()
  connection.addEventListener('message', ({ message }: Hl7MessageEvent) => {
    last = last.then(async () => {
      if (gone.signal.aborted) return
      const ack = await answer({ message, remote, signal: gone.signal }).catch((error: Error) => {
        note('red', `${remote}: ${error.message}`)
        return undefined
      })
      if (ack === undefined) socket.destroy()
      else if (!gone.signal.aborted) connection.send(ack)
    })
  })
  connection.addEventListener('close', () => gone.abort())
  connection.addEventListener('error', ({ error }: Hl7ErrorEvent) => {
    note('red', `${remote}: ${error.message}`)
    socket.destroy()
  })
}

/** The bot's answer if it is a message; otherwise an acknowledgment of the bot's success or failure. */
export function toAck(message: Hl7Message, isOk: boolean, body: string): Hl7Message {
  if (isOk && body.startsWith('MSH')) return Message.parse(body)
  return message.buildAck({ ackCode: isOk ? 'AA' : 'AE' })
}

/** Sends a message to a device and returns its acknowledgement. Errors: no connection, no answer. */
export async function sendMllp(
  address: string,
  body: string,
  returnAck: 'first' | 'application' | undefined,
  timeoutMs: number,
): Promise<string> {
  const { host, port, encoding } = parseMllp(address)
  const { Hl7Client } = await import('@medplum/hl7')
  const client = new Hl7Client({ host, port, encoding, connectTimeout: timeoutMs })
  // The package keeps its own timer after an answer, and the process with it.
  const answered = new AbortController()
  const timeout = delay(timeoutMs, undefined, { signal: answered.signal }).then(() => {
    throw new Error(`No answer within ${timeoutMs / 1000} s`)
  })
  try {
    const answer = client.sendAndWait(Message.parse(body), { returnAck: returnAck ?? 'first' })
    return (await Promise.race([answer, timeout])).toString()
  } finally {
    answered.abort()
    await client.close()
  }
}
