/**
 * The protocol's own request to end what a connection runs: it needs no place in a pool and no login, takes none of
 * the connections that PostgreSQL has, and poolers pass it on.
 * https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-CANCELING-REQUESTS
 */
import { setTimeout as delay } from 'node:timers/promises'
import { type ConnectionConfig, Connection as PgConnection } from 'pg'
import type { Logger } from '../../log.ts'
import type { RawConnection } from './pool.ts'

const AGAIN_MS = 200
const ANSWER_MS = 2000

/** pg's client knows where it is connected, and its connection can ask for this; their types know less. */
interface Place {
  readonly host: string
  readonly port: number
  readonly ssl: ConnectionConfig['ssl'] | false
  readonly secretKey: number
}

interface Wire {
  connect(port: number | string, host?: string): void
  requestSsl(): void
  cancel(processId: number, secretKey: number): void
}

/**
 * Asks until `over`: a request may arrive before the statement that it is about, or end only the first of several.
 * Does not throw: a statement that goes on ends by its own time.
 */
export async function cancelStatements(
  connection: RawConnection,
  over: AbortSignal,
  log: Logger,
): Promise<void> {
  let wasTold = false
  while (!over.aborted) {
    await requestCancel(connection).catch((error: Error) => {
      if (!wasTold) log.warn({ reason: error.message }, 'A statement was not cancelled')
      wasTold = true
    })
    await delay(AGAIN_MS, undefined, { signal: over, ref: false }).catch(() => undefined)
  }
}

/** Settles when the other side has closed the connection, which is its only answer. */
function requestCancel(client: RawConnection): Promise<void> {
  const { host, port, ssl, secretKey } = client as RawConnection & Place
  return new Promise((resolve, reject) => {
    const connection = new PgConnection({ ssl: ssl || undefined }) as PgConnection & Wire
    const timer = setTimeout(() => connection.stream.destroy(new Error('No answer')), ANSWER_MS)
    const send = () => connection.cancel(client.processID, secretKey)
    connection.on('connect', () => (ssl ? connection.requestSsl() : send()))
    connection.on('sslconnect', send)
    connection.on('error', reject)
    connection.on('end', () => {
      clearTimeout(timer)
      resolve()
    })
    if (host.startsWith('/')) connection.connect(`${host}/.s.PGSQL.${port}`)
    else connection.connect(port, host)
  })
}
