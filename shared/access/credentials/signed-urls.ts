/**
 * Signed Binary URLs: one version for any bearer, for an hour, without a token.
 * `{base}storage/{id}/{vid}?Expires=…&Project=…&Member=…&Signature=…`; the member's access is checked on use. With `Upload=…` it takes
 * new content by PUT.
 */
import { createHmac, timingSafeEqual } from 'node:crypto'
import type { KeySet, SigningKey } from './tokens.ts'

export interface SignedVersion {
  /** Ids are unique within a Project only. */
  readonly project: string
  readonly id: string
  readonly ver: number
  /** Membership that the URL is issued to; undefined for the service itself. */
  readonly membershipId: string | undefined
  /** For an address that takes new content once, until the version changes; absent for a download. */
  readonly upload?: SignedUpload | undefined
}

interface SignedUpload {
  /** The upload ends with this Login, and has its scope; undefined for programs without one. */
  readonly loginId: string | undefined
}

export interface SignedUrls {
  sign(version: SignedVersion): string
  /** Undefined unless the service signed it. */
  verify(
    id: string,
    vid: string,
    query: URLSearchParams,
  ): Promise<SignedVersion | 'expired' | undefined>
}

const LIFETIME_SECONDS = 3600

export function createSignedUrls(baseUrl: string, keys: KeySet): SignedUrls {
  const isSigned = (text: string, signature: Buffer) =>
    keys.keys.some((key) => {
      const expected = digest(key, text)
      return expected.length === signature.length && timingSafeEqual(expected, signature)
    })

  return {
    sign(version) {
      const [key] = keys.keys
      if (key === undefined) throw new Error('There is no signing key')
      const { project, id, ver, membershipId, upload } = version
      const expires = Math.floor(Date.now() / 1000) + LIFETIME_SECONDS
      const signature = digest(key, signaturePayload(version, String(expires))).toString(
        'base64url',
      )
      const query = new URLSearchParams({
        Expires: String(expires),
        Project: project,
        ...(membershipId === undefined ? {} : { Member: membershipId }),
        ...(upload && { Upload: upload.loginId ?? '' }),
        Signature: signature,
      })
      return `${baseUrl}storage/${id}/${ver}?${query}`
    },
    async verify(id, vid, query) {
      const expires = query.get('Expires') ?? ''
      const project = query.get('Project') ?? ''
      const signature = Buffer.from(query.get('Signature') ?? '', 'base64url')
      if (!/^[1-9]\d{0,8}$/.test(vid) || !/^\d{1,12}$/.test(expires)) return undefined
      const membershipId = query.get('Member') ?? undefined
      const loginId = query.get('Upload')
      const upload = loginId === null ? undefined : { loginId: loginId || undefined }
      const version = { project, id, ver: Number(vid), membershipId, upload }
      const text = signaturePayload(version, expires)
      if (!isSigned(text, signature)) {
        // Another process may have signed with a newer key.
        await keys.reload()
        if (!isSigned(text, signature)) return undefined
      }
      return Number(expires) * 1000 < Date.now() ? 'expired' : version
    },
  }
}

function digest(key: SigningKey, text: string): Buffer {
  return createHmac('sha256', key.urlSecret).update(text).digest()
}

function signaturePayload(
  { project, id, ver, membershipId = '', upload }: SignedVersion,
  expires: string,
): string {
  const parts = [project, id, ver, expires, membershipId]
  // A line break inside a part makes a sixth line, which never verifies; JSON has no line breaks.
  return upload === undefined ? parts.join('\n') : JSON.stringify([...parts, upload.loginId ?? ''])
}
