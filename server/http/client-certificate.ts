/** The client certificate of mutual TLS, which a trusted proxy passes in a header: RFC 8705. */
import type { IncomingHttpHeaders } from 'node:http'
import { readCertificate } from '../../shared/access/credentials/certificates.ts'
import type { Config } from '../../shared/core/config/config.ts'

/** Returns the header as sent; undefined without a certificate, and without the setting. */
export function certificateHeader(
  { clientCertificateHeader: name }: Config,
  headers: IncomingHttpHeaders,
): string | undefined {
  const value = name === undefined ? undefined : headers[name]
  return value === undefined || value === '' ? undefined : String(value)
}

/** True for a token without a certificate, and for one that came with its own. */
export function comesWithCertificate(
  { certificate }: { readonly certificate: string | undefined },
  header: string | undefined,
): boolean {
  if (certificate === undefined) return true
  const found = header === undefined ? undefined : readCertificate(header)
  return typeof found === 'object' && found.thumbprint === certificate
}
