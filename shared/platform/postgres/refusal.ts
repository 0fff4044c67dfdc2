/** Why PostgreSQL does not let anybody in, in the words of the settings that would. */

const NO_TLS = /no encryption|SSL off/
const NO_TLS_THERE = /does not support SSL/
/** Node's codes of a certificate that is not trusted: OpenSSL's own, and that of another name. */
const CERTIFICATE =
  /^(CERT_|ERR_TLS_CERT|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_|CA_|INVALID_(CA|PURPOSE)|PATH_LENGTH)/

/**
 * A reason that waiting does not mend, without a full stop; undefined for every other error. It never holds
 * a password. SQLSTATE class 28 is a wrong account or way in, 3D000 no such database.
 */
export function connectionRefusal(error: unknown): string | undefined {
  const cause = error instanceof Error && error.cause !== undefined ? error.cause : error
  if (!(cause instanceof Error)) return undefined
  const code = 'code' in cause ? String(cause.code) : ''
  if (CERTIFICATE.test(code)) {
    return (
      `its certificate cannot be checked (${code}); DATABASE_TLS_INSECURE=true takes it unchecked, ` +
      'NODE_EXTRA_CA_CERTS names the file of its authority'
    )
  }
  if (NO_TLS_THERE.test(cause.message)) {
    return 'it has no TLS; take sslmode out of DATABASE_URL, or DATABASE_TLS_INSECURE'
  }
  if (!/^(28...|3D000)$/.test(code)) return undefined
  if (!NO_TLS.test(cause.message)) return `${cause.message}; look at DATABASE_URL`
  return (
    `it takes encrypted connections only; set DATABASE_TLS_INSECURE=true where its certificate is its own, ` +
    'or add ?sslmode=verify-full to DATABASE_URL'
  )
}
