/** `.example` hosts over TLS that a browser trusts. */
import { type RequestListener, request } from 'node:http'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { aCertificate } from '../../../fixtures/services/certificate.ts'

/** Arguments that make Chromium resolve all of `.example` to this machine. */
export const EXAMPLE_HOSTS = [
  '--ignore-certificate-errors',
  '--host-resolver-rules=MAP *.example 127.0.0.1',
]

interface Teardown {
  teardown(end: () => void): void
}

export async function openTls(t: Teardown, answer: RequestListener): Promise<number> {
  const server = createServer(aCertificate(), answer)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
  })
  // The address of a TCP server is never a string.
  return (server.address() as AddressInfo).port
}

/** Forwards requests unchanged, like a TLS-terminating proxy. */
export function proxyTo(target: () => string): RequestListener {
  return (req, res) => {
    const { method, headers } = req
    const onward = request(new URL(req.url ?? '/', target()), { method, headers }, (answer) => {
      res.writeHead(answer.statusCode ?? 502, answer.headers)
      answer.pipe(res)
    })
    onward.on('error', () => res.destroy())
    req.pipe(onward)
  }
}
