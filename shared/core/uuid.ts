/** UUIDs (RFC 9562) as text with hyphens, and as 16 bytes. */

export const UUID_BYTES = 16

export function uuidFromBytes(bytes: Buffer): string {
  const hex = bytes.toString('hex', 0, UUID_BYTES)
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

export function uuidToBytes(uuid: string): Buffer {
  return Buffer.from(uuid.replaceAll('-', ''), 'hex')
}
