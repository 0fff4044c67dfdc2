/** Row ids as COPY gives them, and as text. */

export const ROW_ID_BYTES = 16

export function uuidOf(bytes: Buffer): string {
  const hex = bytes.toString('hex')
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

export function bytesOf(uuid: string): Buffer {
  return Buffer.from(uuid.replaceAll('-', ''), 'hex')
}
