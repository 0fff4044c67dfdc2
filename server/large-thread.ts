/** The web app in a thread, for requests with large bodies. See `large-bodies.ts`. */
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { parentPort, workerData } from 'node:worker_threads'
import { isSameSecret } from '../shared/access/credentials/clients.ts'
import { openServices } from '../shared/api/open-services.ts'
import { createLogger } from '../shared/core/log.ts'
import { createApp } from './app.ts'
import type { Metrics } from './http/metrics.ts'
import {
  type FromThread,
  REMOTE_ADDRESS_HEADER,
  SECRET_HEADER,
  type ThreadData,
  type ToThread,
} from './large/large-bodies.ts'

/** More than web itself takes, for the headers that it adds. */
const MAX_HEADER_BYTES = 131_072

const say = (message: FromThread) => parentPort?.postMessage(message)

/** Counted by the process; the routes that show metrics take no bodies. */
const metrics: Metrics = {
  contentType: 'text/plain',
  text: async () => '',
  values: async () => [],
  request: (...request) => say({ kind: 'request', request }),
  watchSockets: () => undefined,
  watchParts: () => undefined,
  message: () => undefined,
}

// Only web makes this thread.
const { config, secret } = workerData as ThreadData
const services = await openServices(config, createLogger(config.logLevel, 'web'))
const handler = createApp(services, metrics).callback()
const server = createServer({ maxHeaderSize: MAX_HEADER_BYTES, requestTimeout: 0 }, (req, res) => {
  if (!isFromWeb(req)) return req.destroy()
  void handler(req, res)
})
server.keepAliveTimeout = 0
server.listen(0, '127.0.0.1', () => {
  // The address of a TCP server is never a string.
  say({ kind: 'ready', port: (server.address() as AddressInfo).port })
})

parentPort?.on('message', (message: ToThread) => {
  if (message === 'send away') services.queues.sendAway()
  else void stop()
})

/** Moves the address of the caller to where Koa looks for it. */
function isFromWeb({ headers, socket }: IncomingMessage): boolean {
  const { [SECRET_HEADER]: shown, [REMOTE_ADDRESS_HEADER]: peer } = headers
  if (typeof shown !== 'string' || !isSameSecret(shown, secret)) return false
  delete headers[SECRET_HEADER]
  delete headers[REMOTE_ADDRESS_HEADER]
  Object.defineProperty(socket, 'remoteAddress', { value: peer, configurable: true })
  return true
}

/** Web has answered all requests by then. */
async function stop(): Promise<void> {
  server.close()
  server.closeAllConnections()
  await services.close()
  parentPort?.close()
}
