/** Client certificates of mutual TLS, and the elements of a ClientApplication that register them: RFC 8705. */
import { hash, X509Certificate } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { isIP } from 'node:net'
import type { Config } from '../../core/config/config.ts'
import { attempt, issue } from '../../core/errors.ts'
import { asArray, type Resource } from '../../fhir/resource.ts'

export interface ClientCertificate {
  readonly x509: X509Certificate
  /** Digest of the certificate, `x5t#S256`. */
  readonly thumbprint: string
}

/** The first certificate is the client's; its issuers may follow. */
const PEM =
  /^-----BEGIN CERTIFICATE-----\r?\n([A-Za-z0-9+/\r\n]+={0,2})\s+-----END CERTIFICATE-----\s*(?:$|-----BEGIN)/
/** https://www.rfc-editor.org/rfc/rfc9440#section-2.1 */
const BYTE_SEQUENCE = /^:([A-Za-z0-9+/]+={0,2}):$/

/** Reads URL-encoded PEM, or the byte sequence of RFC 9440. Returns the reason for rejecting any other text. */
export function readCertificate(text: string): ClientCertificate | 'malformed' | 'out of date' {
  const base64 =
    BYTE_SEQUENCE.exec(text)?.[1] ?? PEM.exec(attempt(() => decodeURIComponent(text)) ?? '')?.[1]
  if (base64 === undefined) return 'malformed'
  const x509 = attempt(() => new X509Certificate(Buffer.from(base64, 'base64')))
  if (x509 === undefined) return 'malformed'
  const now = Date.now()
  const isInTime = x509.validFromDate.getTime() <= now && now <= x509.validToDate.getTime()
  return isInTime ? { x509, thumbprint: hash('sha256', x509.raw, 'base64url') } : 'out of date'
}

/** A kind of name in certificates by which a client is registered. https://www.rfc-editor.org/rfc/rfc8705#section-2.1.2 */
interface CertificateName {
  readonly form: string
  isReadable(name: string): boolean
  matches(certificate: X509Certificate, name: string): boolean
}

const DISTINGUISHED = /^(?:(?:[A-Za-z][\w-]*|\d+(?:\.\d+)+)=(?:[^,+"\\<>;]|\\.)*(?:[,+](?=.)|$))+$/
const HOST = /^[a-z\d](?:[a-z\d-]*[a-z\d])?(?:\.[a-z\d](?:[a-z\d-]*[a-z\d])?)*$/i
/** The common name of the subject does not count as an alternative name. */
const SUBJECT = { subject: 'never' } as const

const NAMES: Readonly<Record<string, CertificateName>> = {
  tlsClientAuthSubjectDn: {
    form: 'a distinguished name as in RFC 4514, such as CN=laboratory,O=Clinic',
    isReadable: (name) => DISTINGUISHED.test(name),
    matches: ({ subject = '' }, name) => inRfc4514(subject) === sortParts(name),
  },
  tlsClientAuthSanDns: {
    form: 'a host name',
    isReadable: (name) => HOST.test(name),
    matches: (certificate, name) =>
      certificate.checkHost(name, { ...SUBJECT, wildcards: false }) !== undefined,
  },
  tlsClientAuthSanUri: {
    form: 'an absolute URI without quotes, commas and backslashes',
    isReadable: (name) => URL.canParse(name) && /^[!-~]+$/.test(name) && !/["',\\]/.test(name),
    matches: ({ subjectAltName = '' }, name) =>
      // Node quotes a name that has quotes or commas.
      subjectAltName
        .replace(/"(?:[^"\\]|\\.)*"/g, '')
        .split(', ')
        .includes(`URI:${name}`),
  },
  tlsClientAuthSanIp: {
    form: 'an IP address',
    isReadable: (name) => isIP(name) !== 0,
    matches: (certificate, name) => certificate.checkIP(name) !== undefined,
  },
  tlsClientAuthSanEmail: {
    form: 'an e-mail address',
    isReadable: (name) => /^[^@\s]+@[^@\s]+$/.test(name),
    matches: (certificate, name) => certificate.checkEmail(name, SUBJECT) !== undefined,
  },
}
const THUMBPRINT = 'tlsClientCertificateThumbprint'

/** Node writes a part in each line, in the order of the certificate, which RFC 4514 reverses. */
function inRfc4514(subject: string): string {
  return sortParts(subject.replaceAll(' + ', '+').split('\n').reverse().join(','))
}

/** Sorts the attributes of each part of a distinguished name, which have no order; their types have no case. */
function sortParts(name: string): string {
  const parts = name.match(/(?:[^,\\]|\\.)+/g) ?? []
  return parts
    .map((part) =>
      part
        .match(/(?:[^+\\]|\\.)+/g)
        ?.map((attribute) => attribute.replace(/^[^=]+/, (type) => type.toUpperCase()))
        .sort()
        .join('+'),
    )
    .join(',')
}

export const BY_CA = 'tls_client_auth'
export const BY_THUMBPRINT = 'self_signed_tls_client_auth'

/** True when the client authenticates by its certificate alone. */
export function provesByCertificate({ tokenEndpointAuthMethod: method }: Resource): boolean {
  return method === BY_CA || method === BY_THUMBPRINT
}

/** `client` authenticates by its certificate. A name counts only if a CA has verified it. */
export function hasCertificate(client: Resource, { x509, thumbprint }: ClientCertificate): boolean {
  if (client.tokenEndpointAuthMethod === BY_THUMBPRINT) {
    return asArray(client[THUMBPRINT]).includes(thumbprint)
  }
  return Object.entries(NAMES).some(([element, { matches }]) => {
    const name = client[element]
    return typeof name === 'string' && matches(x509, name)
  })
}

/** Returns the issues of the elements that register certificates: each method needs its own, and only those. */
export function certificateIssues(client: Resource): readonly ReturnType<typeof issue>[] {
  const { tokenEndpointAuthMethod: method } = client
  const problem = (element: string, text: string) =>
    issue('error', 'invalid', text, { expression: `ClientApplication.${element}` })
  const elements = Object.keys(NAMES)
  const named = elements.filter((element) => client[element] !== undefined)
  const thumbprints = asArray(client[THUMBPRINT])
  const issues = named
    .filter((element) => !isReadable(element, client[element]))
    .map((element) => problem(element, `${element} must be ${NAMES[element]?.form}`))
  const invalid = thumbprints.findIndex((one) => !/^[\w-]{43}$/.test(String(one)))
  if (invalid >= 0) {
    const text = 'A thumbprint is the SHA-256 digest of the certificate in base64url'
    issues.push(problem(`${THUMBPRINT}[${invalid}]`, text))
  }
  const needs = (element: string, wanted: string) =>
    problem(element, `${element} needs the tokenEndpointAuthMethod ${wanted}`)
  if (method !== BY_CA) issues.push(...named.map((element) => needs(element, BY_CA)))
  else if (named.length !== 1) {
    const text = `${BY_CA} needs exactly one of ${elements.join(', ')}`
    issues.push(problem(named[1] ?? 'tokenEndpointAuthMethod', text))
  }
  if (method !== BY_THUMBPRINT && thumbprints.length > 0) {
    issues.push(needs(THUMBPRINT, BY_THUMBPRINT))
  } else if (method === BY_THUMBPRINT && thumbprints.length === 0) {
    issues.push(problem('tokenEndpointAuthMethod', `${BY_THUMBPRINT} needs ${THUMBPRINT}`))
  }
  return issues
}

function isReadable(element: string, name: unknown): boolean {
  return typeof name === 'string' && NAMES[element]?.isReadable(name) === true
}

/** Returns the header of the trusted proxy, as sent; undefined without a certificate, and without the setting. */
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
