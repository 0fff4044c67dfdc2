/** Headers of content that somebody has uploaded: it must never run as if it were ours. */

/** Anything but a media type must not reach a header. */
export function safeContentType(contentType: unknown): string {
  return typeof contentType === 'string' &&
    /^[\w.+-]+\/[\w.+-]+(\s*;[\x20-\x7e]*)?$/.test(contentType)
    ? contentType
    : 'application/octet-stream'
}

/** Types that browsers show without running anything in them. */
const SHOWN =
  /^(image\/(png|jpeg|gif|webp|avif|bmp|tiff)|audio\/[\w.+-]+|video\/[\w.+-]+|text\/(plain|csv)|application\/(pdf|json|fhir\+json|dicom))\s*(;|$)/i

/** A page or an SVG gets an origin of its own, without scripts, should a browser show it at all. */
const SANDBOX = "sandbox; default-src 'none'; frame-ancestors 'none'"

export function contentHeaders(
  contentType: string,
  filename: string | undefined,
): Record<string, string> {
  const type = safeContentType(contentType)
  const disposition = SHOWN.test(type) ? 'inline' : 'attachment'
  return {
    'Content-Type': type,
    'Content-Security-Policy': SANDBOX,
    ...(filename === undefined && disposition === 'inline'
      ? {}
      : { 'Content-Disposition': disposition + filenameParameters(filename) }),
  }
}

/** A quoted ASCII form for old readers, the whole name for all others (RFC 6266 §4.3, RFC 8187). */
function filenameParameters(filename: string | undefined): string {
  if (filename === undefined) return ''
  const plain = filename.replace(/[^\x20-\x7e]|["\\%]/g, '_')
  const encoded = encodeURIComponent(filename.toWellFormed()).replace(
    /['()*]/g,
    (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`,
  )
  return `; filename="${plain}"; filename*=UTF-8''${encoded}`
}

const LONGEST_FILENAME = 255

/** The last part of a path, without control characters; undefined when nothing is left. */
export function cleanFilename(name: string | null): string | undefined {
  const last = (name ?? '').split(/[\\/]/).at(-1) ?? ''
  const clean = last
    .replace(/\p{Cc}/gu, '')
    .trim()
    .slice(0, LONGEST_FILENAME)
    .toWellFormed()
  return clean === '' ? undefined : clean
}
